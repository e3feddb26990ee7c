#include "service/gateway/wire_format.h"

#include "core/protocol/chat_response.h"
#include "core/protocol/completion_request.h"
#include "core/protocol/completion_response.h"
#include "core/protocol/messages_response.h"
#include "core/protocol/tokenize.h"

namespace penstock::gateway {

using protocol::AnswerWriter;
using protocol::ChatLimits;
using protocol::ChatRequest;

Result<ChatRequest> ChatFormat::parse(std::string_view body, const ChatLimits& limits) {
  return protocol::parse_chat_request(body, limits);
}

std::unique_ptr<AnswerWriter> ChatFormat::make_writer(const ChatRequest& request,
                                                      const AnswerIdentity& answer) {
  protocol::ChatAnswer chat;
  chat.id = "chatcmpl-" + answer.name;
  chat.created = answer.created;
  chat.model = request.model;
  chat.choices = request.sampling.choices;
  chat.logprobs = request.logprobs();
  chat.include_usage = request.include_usage;
  return request.stream ? protocol::make_chat_stream(chat, request.tool_choice)
                        : protocol::make_chat_collector(chat, request.tool_choice);
}

Result<ChatRequest> MessagesFormat::parse(std::string_view body, const ChatLimits& limits) {
  return protocol::parse_messages_request(body, call_, limits);
}

std::unique_ptr<AnswerWriter> MessagesFormat::make_writer(const ChatRequest& request,
                                                          const AnswerIdentity& answer) {
  protocol::MessagesAnswer message{"msg_" + answer.name, request.model, answer.request_id};
  return request.stream ? protocol::make_messages_stream(std::move(message))
                        : protocol::make_messages_collector(std::move(message));
}

std::string MessagesFormat::count_body(std::uint64_t prompt_tokens) const {
  return protocol::messages_token_count(prompt_tokens);
}

Result<ChatRequest> TokenizeFormat::parse(std::string_view body, const ChatLimits& limits) {
  TRY(auto request, protocol::parse_tokenize_request(body, limits));
  text_ = std::move(request.text);
  return std::move(request.chat);
}

std::vector<RawPrompt> TokenizeFormat::take_raw_prompts() {
  if (!text_) return {};
  return {RawPrompt{.text = std::move(*text_)}};
}

std::string TokenizeFormat::tokens_body(std::span<const TokenId> prompt) const {
  return protocol::tokenize_answer(prompt);
}

Result<ChatRequest> CompletionFormat::parse(std::string_view body, const ChatLimits& limits) {
  TRY(auto request, protocol::parse_completion_request(body, limits));
  prompt_count_ = static_cast<std::uint32_t>(request.prompts.size());
  if (request.echo) echoes_.resize(prompt_count_);
  for (std::size_t i = 0; i < prompt_count_; ++i) {
    protocol::CompletionPrompt& prompt = request.prompts[i];
    const bool is_text = !prompt.ids;
    if (request.echo && is_text) echoes_[i] = prompt.text;
    prompts_.push_back({.text = std::move(prompt.text),
                        .suffix = request.suffix,
                        .begins = is_text,
                        .ids = std::move(prompt.ids),
                        .wants_text = request.echo && !is_text});
  }
  return std::move(request.chat);
}

std::unique_ptr<AnswerWriter> CompletionFormat::make_writer(const ChatRequest& request,
                                                            const AnswerIdentity& answer) {
  protocol::CompletionAnswer completion;
  completion.id = "cmpl-" + answer.name;
  completion.created = answer.created;
  completion.model = request.model;
  completion.echoes = std::move(echoes_);
  completion.choices = request.sampling.choices * prompt_count_;
  completion.top_logprobs = request.sampling.top_logprobs;
  completion.include_usage = request.include_usage;
  return request.stream ? protocol::make_completion_stream(std::move(completion))
                        : protocol::make_completion_collector(std::move(completion));
}

}  // namespace penstock::gateway
