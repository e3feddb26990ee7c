// Choice: one answer of a request on its way from tokens to protocol events.
//
// Tokens -> detokenizer (whole characters) -> output parser (reasoning, text, tool calls) ->
// pieces. Knows when the answer is over for a reason the engine can't see: a stop string, or a
// second tool call where only one is allowed.
//
// Invariants: after finished() nothing more comes; tokens after the stop are not counted.
// Concurrency: owned by its request.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/prompt/detokenizer.h"
#include "core/prompt/output_parser.h"
#include "core/protocol/answer_writer.h"
#include "domain/engine.h"

namespace penstock::gateway {

class Choice {
 public:
  struct Options {
    const Tokenizer* tokenizer = nullptr;
    Tokenizer::Special special = Tokenizer::Special::kSkip;  // what the parser gets of them
    std::unique_ptr<prompt::OutputParser> parser;
    bool logprobs = false;
    bool parallel_tool_calls = true;
    std::function<std::string()> new_call_id;
  };
  // Gets the protocol deltas in order; views are valid during the call.
  using Deliver = std::function<void(const protocol::ChatDelta&)>;

  Choice(std::uint32_t index, Options options);

  // Takes what the engine produced for this choice.
  void consume(const EngineOutput& output, const Deliver& deliver);

  // Set once the choice is over: kStop or kLength.
  std::optional<FinishReason> finished() const { return finish_; }
  // How it ended. `context_is_cap`: max_tokens is what was left of the context. Precondition:
  // finished(). The stop string is valid as long as the choice.
  protocol::ChoiceEnd end(bool context_is_cap) const {
    return {*finish_, options_.parser->saw_tool_call(),
            context_is_cap && *finish_ == FinishReason::kLength, options_.parser->stop_string()};
  }
  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void take_token(const OutputToken& token, bool shown, std::vector<prompt::OutputEvent>& events);
  void deliver_events(const std::vector<prompt::OutputEvent>& events, const Deliver& deliver);
  bool too_many_calls(std::vector<prompt::OutputEvent>& events);

  std::uint32_t index_;
  Options options_;
  IncrementalDetokenizer detokenizer_;
  std::optional<FinishReason> finish_;
  std::uint64_t tokens_ = 0;
  std::uint64_t reasoning_tokens_ = 0;
  std::uint32_t calls_ = 0;
  std::string call_id_;
  std::vector<protocol::LogprobEntry> logprobs_;  // of tokens whose text is still held back
};

}  // namespace penstock::gateway
