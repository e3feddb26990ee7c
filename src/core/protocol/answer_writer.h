// AnswerWriter: what one answer looks like on the wire, fed with what the model says.
//
// Each wire format has two: a stream appends complete server-sent events as things happen; a whole
// answer appends nothing until end(), then its body. Both are fed alike, so a request answered
// either way says the same.
//
//   start, (add | finish)*, end      an answer; every choice finishes once, nothing of it follows
//   ..., fail                        ends a stream anywhere before end(); nothing may follow. (A
//                                    whole answer that fails is an HTTP error instead.)
//   keep_alive                       anywhere before end() or fail(), start() included
//
// Invariants: text pieces hold whole characters, anything else becomes U+FFFD; a failed answer
// never looks finished. Errors: none; another order is a bug (ENSURE). Concurrency: one request
// each. No clock, no random numbers: ids and times come in as values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "domain/engine.h"
#include "domain/usage.h"

namespace penstock::protocol {

struct TokenText {
  std::string bytes;  // as the tokenizer spells it; need not be whole characters
  float logprob = 0.0F;
};

struct LogprobEntry {
  TokenText token;
  std::vector<TokenText> top;
};

// A piece of a tool call. The first piece of an index brings id and name; they are ignored later.
// Calls come one after the other: index 0 first, and no piece of an index once the next has begun.
struct ToolCallPiece {
  std::uint32_t index = 0;
  std::string_view id = {};
  std::string_view name = {};
  std::string_view arguments = {};
};

// What was produced for one choice since the last event. Everything may be empty.
struct ChatDelta {
  std::uint32_t choice = 0;
  std::string_view reasoning = {};
  std::string_view content = {};
  std::span<const ToolCallPiece> tool_calls = {};
  std::span<const LogprobEntry> logprobs = {};
};

// How a choice ended.
struct ChoiceEnd {
  FinishReason reason = FinishReason::kStop;  // kStop or kLength
  bool called_tools = false;
  bool context_full = false;          // kLength because the model's context was full
  std::string_view stop_string = {};  // the one that was met, if any
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // Usage of the prompt is known; completion_tokens are not.
  virtual void start(const Usage& usage, std::string& out) = 0;
  virtual void add(const ChatDelta& delta, std::string& out) = 0;
  virtual void finish(std::uint32_t choice, const ChoiceEnd& end, std::string& out) = 0;
  virtual void end(const Usage& usage, std::string& out) = 0;
  virtual void fail(const Error& error, std::string& out) = 0;
  virtual void keep_alive(std::string& out) = 0;
};

}  // namespace penstock::protocol
