#include "service/gateway/choice.h"

#include <span>
#include <utility>

namespace penstock::gateway {

using prompt::OutputEvent;
using protocol::ChatDelta;

Choice::Choice(std::uint32_t index, Options options)
    : index_(index),
      options_(std::move(options)),
      detokenizer_(*options_.tokenizer, options_.special) {}

void Choice::consume(const EngineOutput& output, const Deliver& deliver) {
  std::vector<OutputEvent> events;
  for (std::size_t i = 0; i < output.tokens.size() && !finish_; ++i) {
    // The token that ended generation is counted but is no part of the text.
    const bool stop_token = output.finish == FinishReason::kStop && i + 1 == output.tokens.size();
    take_token(output.tokens[i], !stop_token, events);
    if (options_.parser->stopped() || too_many_calls(events)) finish_ = FinishReason::kStop;
  }
  if (!finish_ && output.finish) finish_ = output.finish;
  if (finish_) {
    std::string tail;
    detokenizer_.finish(tail);
    options_.parser->feed(tail, events);
    options_.parser->finish(events);
    too_many_calls(events);
  }
  deliver_events(events, deliver);
}

void Choice::take_token(const OutputToken& token, bool shown, std::vector<OutputEvent>& events) {
  ++tokens_;
  if (options_.parser->in_reasoning()) ++reasoning_tokens_;
  if (!shown) return;
  if (options_.logprobs) {
    const auto text = [this](TokenId id, float logprob) {
      return protocol::TokenText{std::string(options_.tokenizer->token_bytes(id)), logprob};
    };
    protocol::LogprobEntry entry{text(token.token, token.logprob), {}};
    for (const TokenLogprob& other : token.top) {
      entry.top.push_back(text(other.token, other.logprob));
    }
    logprobs_.push_back(std::move(entry));
  }
  std::string text;
  detokenizer_.push(token.token, text);
  if (!text.empty()) options_.parser->feed(text, events);
}

// With parallel calls off the answer ends after its first call; what was begun after it goes.
bool Choice::too_many_calls(std::vector<OutputEvent>& events) {
  if (options_.parallel_tool_calls) return false;
  std::uint32_t ended = calls_;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].kind != OutputEvent::Kind::kToolEnd) continue;
    if (++ended == 1) {
      events.resize(i + 1);
      return true;
    }
  }
  return false;
}

void Choice::deliver_events(const std::vector<OutputEvent>& events, const Deliver& deliver) {
  for (const OutputEvent& event : events) {
    ChatDelta delta;
    delta.choice = index_;
    protocol::ToolCallPiece piece;
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        delta.reasoning = event.text;
        break;
      case OutputEvent::Kind::kContent:
        delta.content = event.text;
        break;
      case OutputEvent::Kind::kToolBegin:
        call_id_ = options_.new_call_id();
        piece = {calls_, call_id_, event.text, {}};
        delta.tool_calls = std::span(&piece, 1);
        break;
      case OutputEvent::Kind::kToolArguments:
        piece = {calls_, call_id_, {}, event.text};
        delta.tool_calls = std::span(&piece, 1);
        break;
      case OutputEvent::Kind::kToolEnd:
        ++calls_;
        continue;
    }
    delta.logprobs = logprobs_;
    deliver(delta);
    logprobs_.clear();
  }
  if (finish_ && !logprobs_.empty()) {
    ChatDelta delta;
    delta.choice = index_;
    delta.logprobs = logprobs_;
    deliver(delta);
    logprobs_.clear();
  }
}

}  // namespace penstock::gateway
