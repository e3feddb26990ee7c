// How an answer of an emulator looks on the wire, whole and as events, in each API.
#include <fmt/format.h>
#include <array>
#include <utility>

#include "base/xxh3.h"
#include "core/dialects/json_values.h"
#include "core/protocol/sse.h"
#include "service/emulate/answer.h"

namespace penstock::emulate {
namespace {

using dialects::quoted;
using dialects::WireApi;

std::string named_event(std::string_view type, std::string_view rest) {
  std::string out;
  protocol::append_sse_event(out, type, fmt::format(R"({{"type":"{}"{}}})", type, rest));
  return out;
}

std::string data_event(const std::string& json) {
  std::string out;
  protocol::append_sse_event(out, json);
  return out;
}

}  // namespace

// Another one on every engine, as the real ones'.
std::string Emulator::Answer::name(std::string_view prefix) const {
  return fmt::format("{}{:016x}", prefix, answer_id_);
}

// The name of the first of the tools, which the answer calls; empty: it has none.
std::string Emulator::Answer::tool_of(const dialects::JsonBody& body) {
  const auto tools = body.value("tools");
  const auto first = tools ? dialects::first_element(*tools) : std::nullopt;
  if (!first) return {};
  const auto inner = dialects::string_at(*first, {"function", "name"});
  return inner ? *inner : dialects::string_at(*first, {"name"}).value_or("");
}

// Of a tool call the words are its argument, as JSON text in these pieces.
std::string Emulator::Answer::piece(const std::string& word) const {
  if (tool_.empty()) return word;
  std::string json = quoted(word);
  return (words_sent_ == 0 ? R"({"said":")" : "") + json.substr(1, json.size() - 2) +
         (words_sent_ + 1 == tokens_ ? R"("})" : "");
}

// What stands for the words as token ids: so many from one on.
std::string Emulator::Answer::word_ids(std::uint32_t from, std::uint32_t count) const {
  std::string out;
  for (std::uint32_t i = from; i < from + count; ++i) {
    const std::array<std::uint64_t, 2> key = {prompt_, i};
    out += fmt::format("{}{}", i == from ? "" : ",", xxh3().hash(key.data(), sizeof key) % 100'000);
  }
  return "[" + out + "]";
}

std::string Emulator::Answer::usage_json() const {
  const std::uint64_t total = prompt_tokens_ + tokens_;
  if (api_ == WireApi::kMessages)
    return fmt::format(R"({{"input_tokens":{},"cache_read_input_tokens":{},"output_tokens":{}}})",
                       prompt_tokens_ - cached_tokens_, cached_tokens_, tokens_);
  if (api_ == WireApi::kResponses)
    return fmt::format(
        R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{}}},"output_tokens":{},"total_tokens":{}}})",
        prompt_tokens_, cached_tokens_, tokens_, total);
  return fmt::format(
      R"({{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}}}})",
      prompt_tokens_, total, tokens_, cached_tokens_);
}

// The one item of a response.
std::string Emulator::Answer::item(std::string_view status, std::string_view text) const {
  if (!tool_.empty())
    return fmt::format(
        R"({{"id":"{}","type":"function_call","status":"{}","call_id":"{}","name":{},"arguments":{}}})",
        name("fc_"), status, name("call_"), quoted(tool_), quoted(text));
  const std::string content =
      text.empty()
          ? ""
          : fmt::format(R"({{"type":"output_text","text":{},"annotations":[]}})", quoted(text));
  return fmt::format(
      R"({{"id":"{}","type":"message","status":"{}","role":"assistant","content":[{}]}})",
      name("msg_"), status, content);
}

std::string Emulator::Answer::response(std::string_view status, std::string_view output,
                                       std::string_view usage) const {
  return fmt::format(
      R"({{"id":"{}","object":"response","created_at":{:.0f},"status":"{}","model":{},"output":[{}],"usage":{}}})",
      name("resp_"), emulator_.unix_seconds_(), status, quoted(emulator_.options_.model), output,
      usage);
}

std::string Emulator::Answer::finish() const {
  if (api_ == WireApi::kMessages)
    return cut_short_ ? "max_tokens" : tool_.empty() ? "end_turn" : "tool_use";
  return cut_short_ ? "length" : tool_.empty() ? "stop" : "tool_calls";
}

std::string Emulator::Answer::whole_body(const std::string& text) const {
  const std::string model = quoted(emulator_.options_.model);
  switch (api_) {
    case WireApi::kMessages: {
      const std::string block =
          tool_.empty() ? fmt::format(R"({{"type":"text","text":{}}})", quoted(text))
                        : fmt::format(R"({{"type":"tool_use","id":"{}","name":{},"input":{}}})",
                                      name("toolu_"), quoted(tool_), text);
      return fmt::format(
          R"({{"id":"{}","type":"message","role":"assistant","model":{},"content":[{}],"stop_reason":"{}","stop_sequence":null,"usage":{}}})",
          name("msg_"), model, block, finish(), usage_json());
    }
    case WireApi::kResponses:
      return response("completed", item("completed", text), usage_json());
    case WireApi::kCompletion:
      return fmt::format(
          R"({{"id":"{}","object":"text_completion","created":0,"model":{},"choices":[{{"index":0,"text":{},"logprobs":null,"finish_reason":"{}"}}],"usage":{}}})",
          name("cmpl-"), model, quoted(text), finish(), usage_json());
    case WireApi::kGenerate:
      return fmt::format(
          R"({{"request_id":"{}","choices":[{{"index":0,"logprobs":null,"finish_reason":"{}","token_ids":{}}}],"prompt_logprobs":null,"usage":{}}})",
          name("generate-"), finish(), word_ids(0, tokens_), usage_json());
    case WireApi::kEmbeddings:
      return fmt::format(
          R"({{"id":"embd-1","object":"list","created":0,"model":{},"data":[{{"index":0,"object":"embedding","embedding":[{}]}}],"usage":{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":0}}}})",
          model, fmt::join(emulated_embedding(prompt_), ","), prompt_tokens_, prompt_tokens_);
    case WireApi::kTokenize:
      return fmt::format(R"({{"count":{},"max_model_len":32768,"tokens":[{}]}})",
                         prompt_ids_.size(), fmt::join(prompt_ids_, ","));
    default: {
      const std::string message =
          tool_.empty()
              ? fmt::format(R"("content":{})", quoted(text))
              : fmt::format(
                    R"("content":null,"tool_calls":[{{"id":"{}","type":"function","function":{{"name":{},"arguments":{}}}}}])",
                    name("call_"), quoted(tool_), quoted(text));
      return fmt::format(
          R"({{"id":"{}","object":"chat.completion","created":0,"model":{},"choices":[{{"index":0,"message":{{"role":"assistant",{}}},"logprobs":null,"finish_reason":"{}"}}],"usage":{}}})",
          name("chatcmpl-"), model, message, finish(), usage_json());
    }
  }
}

std::string Emulator::Answer::chat_event(std::string_view delta, std::string_view finish) const {
  return data_event(fmt::format(
      R"({{"id":"{}","object":"chat.completion.chunk","created":0,"model":{},"choices":[{{"index":0,"delta":{},"logprobs":null,"finish_reason":{}}}]}})",
      name("chatcmpl-"), quoted(emulator_.options_.model), delta, finish));
}

std::string Emulator::Answer::response_event(std::string_view type, const std::string& rest) {
  return named_event(type, fmt::format(R"(,"sequence_number":{},{})", sequence_++, rest));
}

// Where in a response the text is.
std::string Emulator::Answer::at_item() const {
  return tool_.empty()
             ? fmt::format(R"("item_id":"{}","output_index":0,"content_index":0)", name("msg_"))
             : fmt::format(R"("item_id":"{}","output_index":0)", name("fc_"));
}

std::string Emulator::Answer::first_events() {
  const std::string model = quoted(emulator_.options_.model);
  if (api_ == WireApi::kMessages) {
    const std::string block =
        tool_.empty() ? R"({"type":"text","text":""})"
                      : fmt::format(R"({{"type":"tool_use","id":"{}","name":{},"input":{{}}}})",
                                    name("toolu_"), quoted(tool_));
    return named_event(
               "message_start",
               fmt::format(
                   R"(,"message":{{"id":"{}","type":"message","role":"assistant","model":{},"content":[],"stop_reason":null,"usage":{{"input_tokens":{},"cache_read_input_tokens":{},"output_tokens":0}}}})",
                   name("msg_"), model, prompt_tokens_ - cached_tokens_, cached_tokens_)) +
           named_event("content_block_start",
                       fmt::format(R"(,"index":0,"content_block":{})", block));
  }
  if (api_ == WireApi::kResponses) {
    const std::string begun = R"("response":)" + response("in_progress", "", "null");
    std::string out = response_event("response.created", begun);
    out += response_event("response.in_progress", begun);
    out += response_event("response.output_item.added",
                          R"("output_index":0,"item":)" + item("in_progress", ""));
    if (tool_.empty())
      out += response_event(
          "response.content_part.added",
          at_item() + R"(,"part":{"type":"output_text","text":"","annotations":[]})");
    return out;
  }
  if (api_ == WireApi::kCompletion || api_ == WireApi::kGenerate) return {};
  std::string out = chat_event(R"({"role":"assistant","content":""})", "null");
  if (!tool_.empty())
    out += chat_event(
        fmt::format(
            R"({{"tool_calls":[{{"index":0,"id":"{}","type":"function","function":{{"name":{},"arguments":""}}}}]}})",
            name("call_"), quoted(tool_)),
        "null");
  return out;
}

std::string Emulator::Answer::word_event(const std::string& word) {
  const std::string model = quoted(emulator_.options_.model);
  if (api_ == WireApi::kMessages) {
    const std::string_view type = tool_.empty() ? "text_delta" : "input_json_delta";
    const std::string_view field = tool_.empty() ? "text" : "partial_json";
    return named_event(
        "content_block_delta",
        fmt::format(R"(,"index":0,"delta":{{"type":"{}","{}":{}}})", type, field, quoted(word)));
  }
  if (api_ == WireApi::kResponses)
    return response_event(
        tool_.empty() ? "response.output_text.delta" : "response.function_call_arguments.delta",
        fmt::format(R"({},"delta":{})", at_item(), quoted(word)));
  if (api_ == WireApi::kGenerate)
    return data_event(fmt::format(
        R"({{"request_id":"{}","choices":[{{"index":0,"logprobs":null,"finish_reason":null,"token_ids":{}}}]}})",
        name("generate-"), word_ids(words_sent_, 1)));
  if (api_ == WireApi::kCompletion)
    return data_event(fmt::format(
        R"({{"id":"{}","object":"text_completion","created":0,"model":{},"choices":[{{"index":0,"text":{},"logprobs":null,"finish_reason":null}}]}})",
        name("cmpl-"), model, quoted(word)));
  return chat_event(
      tool_.empty()
          ? fmt::format(R"({{"content":{}}})", quoted(word))
          : fmt::format(R"({{"tool_calls":[{{"index":0,"function":{{"arguments":{}}}}}]}})",
                        quoted(word)),
      "null");
}

std::string Emulator::Answer::last_events(const std::string& text) {
  const std::string model = quoted(emulator_.options_.model);
  if (api_ == WireApi::kMessages)
    return named_event("content_block_stop", R"(,"index":0)") +
           named_event(
               "message_delta",
               fmt::format(
                   R"(,"delta":{{"stop_reason":"{}","stop_sequence":null}},"usage":{{"output_tokens":{}}})",
                   finish(), tokens_)) +
           named_event("message_stop", "");
  if (api_ == WireApi::kResponses) {
    std::string out;
    if (tool_.empty()) {
      out += response_event("response.output_text.done",
                            fmt::format(R"({},"text":{})", at_item(), quoted(text)));
      out += response_event(
          "response.content_part.done",
          fmt::format(R"({},"part":{{"type":"output_text","text":{},"annotations":[]}})", at_item(),
                      quoted(text)));
    } else {
      out += response_event("response.function_call_arguments.done",
                            fmt::format(R"({},"arguments":{})", at_item(), quoted(text)));
    }
    out += response_event("response.output_item.done",
                          R"("output_index":0,"item":)" + item("completed", text));
    return out + response_event("response.completed", R"("response":)" + whole_body(text));
  }
  if (api_ == WireApi::kGenerate)
    return data_event(fmt::format(
               R"({{"request_id":"{}","choices":[{{"index":0,"logprobs":null,"finish_reason":"{}","token_ids":[]}}],"usage":{}}})",
               name("generate-"), finish(), usage_json())) +
           std::string(protocol::kSseDone);
  const bool chat = api_ == WireApi::kChat;
  const std::string id = name(chat ? "chatcmpl-" : "cmpl-");
  const std::string_view object = chat ? "chat.completion.chunk" : "text_completion";
  std::string out =
      chat
          ? chat_event("{}", quoted(finish()))
          : data_event(fmt::format(
                R"({{"id":"{}","object":"{}","created":0,"model":{},"choices":[{{"index":0,"text":"","logprobs":null,"finish_reason":"{}"}}]}})",
                id, object, model, finish()));
  const auto options = body_.value("stream_options");
  if (options && dialects::value_at(*options, {"include_usage"}) == "true")
    out += data_event(
        fmt::format(R"({{"id":"{}","object":"{}","created":0,"model":{},"choices":[],"usage":{}}})",
                    id, object, model, usage_json()));
  return out + std::string(protocol::kSseDone);
}

}  // namespace penstock::emulate
