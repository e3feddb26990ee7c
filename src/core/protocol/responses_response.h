// Responses API answers: an AnswerWriter for streams and for whole answers.
//
// A stream is a sequence of named events, numbered from 0: response.created, in_progress, then for
// each item output_item.added, its parts and pieces, output_item.done, then one terminal event with
// the complete object, then [DONE]. Items follow what the model does: reasoning, message and calls
// in the order they come, one open at a time. The whole answer is the object of the terminal event,
// so both say the same; clients may build on either the pieces or the end.
//
// Reasoning goes out as reasoning_text, and sealed beside it if the client asked for
// `reasoning.encrypted_content`; there is no summary. Calls of a namespace's function carry the
// names that the client declared.
//
// Invariants: as AnswerWriter; one choice only; every event carries the next sequence_number; an
// item that was cut is `incomplete`, and so is the response; after fail() the status is `failed`.
// Units: times in seconds since 1970. Errors: none. Concurrency: one request each. Source:
// facts/api.md 3.3; the Open Responses specification.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/protocol/answer_writer.h"
#include "core/protocol/responses_request.h"
#include "core/protocol/seal.h"

namespace penstock::protocol {

struct ResponsesAnswer {
  std::string name;  // the id is "resp_<name>", those of items "msg_<name>_0" and so on
  std::int64_t created = 0;
  std::string model;  // as the client named it
  bool stream = false;
  bool background = false;  // begins as `queued`
  bool logprobs = false;
  bool encrypted_reasoning = false;
  FunctionSpaces spaces = {};
  std::string echo = {};                            // ResponsesRequest::echo
  Seal seal = {};                                   // close() is used with encrypted_reasoning
  std::function<std::int64_t()> unix_seconds = {};  // when the answer completes
};

class ResponsesWriter final : public AnswerWriter {
 public:
  explicit ResponsesWriter(ResponsesAnswer answer) : answer_(std::move(answer)) {}

  void start(const Usage& usage, std::string& out) override;
  void add(const ChatDelta& delta, std::string& out) override;
  void finish(std::uint32_t choice, const ChoiceEnd& end, std::string& out) override;
  void end(const Usage& usage, std::string& out) override;
  void fail(const Error& error, std::string& out) override;
  void keep_alive(std::string& out) override;

  std::string id() const { return "resp_" + answer_.name; }
  // The object as it is now; complete once over().
  std::string body() const;
  // The items that are complete, as a JSON array.
  std::string output() const { return "[" + output_ + "]"; }
  bool over() const { return over_; }

 private:
  enum class Item : std::uint8_t { kNone, kReasoning, kMessage, kCall };

  std::string item_id() const;
  std::string_view declared_name() const;
  void open_event(std::string& out, std::string_view type);
  void open_item_event(std::string& out, std::string_view type);
  static void close_event(std::string& out);
  void object_event(std::string& out, std::string_view type);
  void append_item(std::string& out, std::string_view status) const;
  void append_part(std::string& out) const;
  void part_event(std::string& out, std::string_view type);
  void open_item(Item kind, std::string& out);
  void close_item(std::string_view status, std::string& out);
  void delta_event(std::string_view text, std::string_view logprobs, std::string& out);
  void done_event(std::string& out);
  void add_text(Item kind, std::string_view text, std::string_view logprobs, std::string& out);
  void add_call(const ToolCallPiece& piece, std::string& out);
  void terminate(std::string& out);

  ResponsesAnswer answer_;
  std::string_view status_ = "in_progress";
  std::uint64_t sequence_ = 0;
  std::uint64_t items_ = 0;  // complete ones; the index of the open one
  std::string output_;       // complete items, comma-separated
  Item open_ = Item::kNone;
  std::string text_;      // of the open item: text or arguments
  std::string logprobs_;  // of the open message: JSON entries, comma-separated
  std::uint32_t call_index_ = 0;
  std::string call_id_;
  std::string call_name_;
  std::string usage_ = "null";
  std::string error_ = "null";
  std::int64_t completed_at_ = 0;
  bool started_ = false;
  bool over_ = false;
};

// The usage object of this API.
void append_responses_usage(std::string& out, const Usage& usage);
// {"code":...,"message":...} as it stands in a failed response.
std::string responses_error(const Error& error);

// Ends a response that is stored as running, from outside: `status` is "cancelled" or "failed",
// `error` is JSON. Precondition: `body` is one of ours.
std::string ended_response(std::string_view body, std::string_view status, std::string_view error);
// The events that say so: an error event when it failed, the terminal one, [DONE].
std::string ending_events(std::string_view ended_body, std::string_view status, const Error& error,
                          std::uint64_t sequence);

}  // namespace penstock::protocol
