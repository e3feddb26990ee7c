// Chat Completions answers: internal events in, stream chunks or one whole object out.
//
// ChatStream writes each event as one SSE event with the exact chunk JSON; ChatCollector gathers
// the same events and writes the whole object. Both are fed alike (add, finish, then end or body),
// so a request answered either way says the same: folding the chunks of a stream gives the whole
// answer.
//
// Invariants: the first delta of each choice carries the role, later ones never; a choice finishes
// at most once and nothing follows; a tool call's id and name are sent once, with its first piece;
// empty arguments become "{}"; tool_calls never appears empty; after fail() there is no finish and
// no [DONE]. Text pieces hold whole characters; anything else becomes U+FFFD. Errors: none; feeding
// events against the order above is a bug (ENSURE). Cost: a chunk is appended to a string, about
// 0.3 us; no tree is built. Concurrency: one request each; a value of the shard. No clock: the
// caller gives `created`. Source: facts/api.md 3.2, 3.7, 5.3, 5.4.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/protocol/answer_writer.h"
#include "core/protocol/chat_request.h"

namespace penstock::protocol {

enum class ChatFinish : std::uint8_t {
  kStop,
  kLength,
  kToolCalls,
  kContentFilter,
  kInsufficientSystemResource
};

// The finish reason a client sees. A cut answer stays cut: length beats tool_calls. A named tool
// choice ends with "stop", as OpenAI measures; auto and required with "tool_calls".
// Precondition: `reason` is kStop or kLength.
ChatFinish chat_finish(FinishReason reason, bool called_tools, const ToolChoice& choice);

// What is the same in every chunk of one answer.
struct ChatAnswer {
  std::string id = {};                  // "chatcmpl-..."
  std::int64_t created = 0;             // seconds since 1970
  std::string model = {};               // as the client named it
  std::string service_tier = {};        // empty: not sent
  std::string system_fingerprint = {};  // empty: not sent
  std::uint32_t choices = 1;
  bool logprobs = false;
  bool include_usage = false;  // streams only
};

// State of one choice that both writers keep.
struct ChatChoiceState {
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;  // the collector's; the stream only keeps whether there were any
    bool has_arguments = false;
  };
  bool started = false;
  bool finished = false;
  std::vector<Call> calls;
  std::string content;  // collector only, as the three below
  std::string reasoning;
  std::string logprobs;  // JSON entries, comma-separated
  std::optional<ChatFinish> finish;
};

class ChatStream {
 public:
  explicit ChatStream(const ChatAnswer& answer);

  // Each call appends complete SSE events to `out` (none when there is nothing to say).
  // Sends the role alone, for callers that want headers and role out before the first token.
  void start(std::uint32_t choice, std::string& out);
  void add(const ChatDelta& delta, std::string& out);
  void finish(std::uint32_t choice, ChatFinish reason, std::string& out);
  // The usage chunk if it was asked for, then [DONE]. Precondition: every choice has finished.
  void end(const Usage& usage, std::string& out);
  // The error event; the caller closes after it. No other call may follow.
  void fail(const Error& error, std::string& out);

 private:
  void begin_delta(ChatChoiceState& state, std::uint32_t choice, std::string& out) const;
  void end_delta(std::string_view logprobs, std::string_view finish, std::string& out) const;
  void text_chunk(ChatChoiceState& state, const ChatDelta& delta, std::string_view name,
                  std::string_view text, std::string_view logprobs, std::string& out) const;
  void tool_chunks(ChatChoiceState& state, const ChatDelta& delta, std::string& out) const;
  void tool_chunk(ChatChoiceState& state, std::uint32_t choice, bool opens,
                  std::string_view arguments, std::string& out) const;

  std::string head_;  // from "data: {" to the choice's index
  std::string tail_;  // from the end of the choices to the end of the event
  ChatAnswer answer_;
  std::vector<ChatChoiceState> choices_;
  bool over_ = false;
};

class ChatCollector {
 public:
  explicit ChatCollector(ChatAnswer answer);

  void add(const ChatDelta& delta);
  void finish(std::uint32_t choice, ChatFinish reason);
  // The whole answer as JSON. Precondition: every choice has finished.
  std::string body(const Usage& usage) const;

 private:
  ChatAnswer answer_;
  std::vector<ChatChoiceState> choices_;
};

// Both of the above behind the port; `tool_choice` decides how a call's answer finishes.
std::unique_ptr<AnswerWriter> make_chat_stream(const ChatAnswer& answer, ToolChoice tool_choice);
std::unique_ptr<AnswerWriter> make_chat_collector(const ChatAnswer& answer, ToolChoice tool_choice);

// The usage object: OpenAI's fields and DeepSeek's prompt_cache_hit/miss_tokens.
void append_usage(std::string& out, const Usage& usage);
// The entries, comma-separated, to be put between brackets.
void append_logprobs(std::string& out, std::span<const LogprobEntry> entries);

}  // namespace penstock::protocol
