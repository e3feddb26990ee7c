#include "core/protocol/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "core/protocol/chat_messages.h"
#include "core/protocol/json_fields.h"
#include "core/protocol/request_fields.h"

namespace penstock::protocol {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kTokenIdMax = std::numeric_limits<TokenId>::max();

// Fields that would change the answer and are not supported yet. Everything unknown is ignored.
constexpr std::string_view kUnsupportedFields[] = {
    "functions",    "audio",         "web_search_options", "guided_json",
    "guided_regex", "guided_choice", "guided_grammar",     "structured_outputs",
};

Status refuse_unsupported(JsonRef body) {
  for (const auto name : kUnsupportedFields) {
    if (const auto value = optional_member(body, name)) {
      return unsupported(value, name == "functions" ? "is not supported here, use tools"
                                                    : "is not supported here");
    }
  }
  if (const auto modalities = optional_member(body, "modalities")) {
    TRY_STATUS(expect_array(modalities));
    for (auto item = modalities.first_child(); item; item = item.next_sibling()) {
      if (!item.equals("text")) return unsupported(item, "only text is supported here");
    }
  }
  return {};
}

Status read_logit_bias(JsonRef value, const ChatLimits& limits, SamplingParams& out) {
  TRY_STATUS(expect_object(value));
  for (auto key = value.first_child(); key;) {
    const auto bias = key.next_sibling();
    const auto id_text = key.string();
    TokenId id = 0;
    const auto* end = id_text.data() + id_text.size();
    const auto parsed = std::from_chars(id_text.data(), end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      return invalid_value(bias, "the key must be a token id in digits");
    }
    if (out.logit_bias.size() == limits.logit_bias_max) {
      return invalid_value(value, fmt::format("holds more than {} biases", limits.logit_bias_max));
    }
    TRY(const float amount, read_number(bias, {-100, 100}));
    out.logit_bias.emplace_back(id, amount);
    key = bias.next_sibling();
  }
  std::ranges::sort(out.logit_bias);
  const auto same_id = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (std::ranges::adjacent_find(out.logit_bias, same_id) != out.logit_bias.end()) {
    return invalid_value(value, "names one token twice");  // "7" and "07"
  }
  return {};
}

Status read_logprobs(JsonRef body, SamplingParams& out) {
  bool wanted = false;
  if (const auto logprobs = optional_member(body, "logprobs")) {
    TRY(wanted, read_bool(logprobs));
  }
  if (wanted) out.top_logprobs = 0;
  if (const auto top = optional_member(body, "top_logprobs")) {
    TRY(const auto count, read_integer(top, {0, 20}));
    if (!wanted && count > 0) return invalid_value(top, "needs \"logprobs\": true");
    if (wanted) out.top_logprobs = static_cast<std::int32_t>(count);
  }
  return {};
}

Status read_max_tokens(JsonRef body, ChatRequest& request) {
  for (const std::string_view name : {"max_tokens", "max_completion_tokens"}) {
    const auto value = optional_member(body, name);
    if (!value) continue;
    TRY(const auto count, read_integer(value, {1, kInt32Max}));
    request.sampling.max_tokens = static_cast<std::uint32_t>(count);
    request.max_tokens_field = name;  // the second, newer name wins
  }
  return {};
}

Status read_sampling(JsonRef body, const ChatLimits& limits, ChatRequest& request) {
  auto& out = request.sampling;
  TRY_STATUS(read_numbers(body, out));
  if (const auto top_k = optional_member(body, "top_k")) {
    TRY(const auto count, read_integer(top_k, {-1, kInt32Max}));
    out.top_k = static_cast<std::int32_t>(count);
  }
  if (const auto seed = optional_member(body, "seed")) {
    TRY(const auto value, read_integer(seed, {std::numeric_limits<std::int64_t>::min(),
                                              std::numeric_limits<std::int64_t>::max()}));
    out.seed = static_cast<std::uint64_t>(value);
    request.has_seed = true;
  }
  if (const auto n = optional_member(body, "n")) {
    TRY(const auto count, read_integer(n, {1, limits.choices_max}));
    out.choices = static_cast<std::uint32_t>(count);
  }
  if (const auto ignore = optional_member(body, "ignore_eos")) {
    TRY(out.ignore_eos, read_bool(ignore));
  }
  if (const auto bias = optional_member(body, "logit_bias")) {
    TRY_STATUS(read_logit_bias(bias, limits, out));
  }
  TRY_STATUS(read_logprobs(body, out));
  return read_max_tokens(body, request);
}

Status read_stop_token_ids(JsonRef body, const ChatLimits& limits, SamplingParams& out) {
  const auto ids = optional_member(body, "stop_token_ids");
  if (!ids) return {};
  TRY_STATUS(expect_array(ids));
  for (auto item = ids.first_child(); item; item = item.next_sibling()) {
    if (out.stop_token_ids.size() == limits.stop_token_ids_max) {
      return invalid_value(ids, fmt::format("holds more than {} ids", limits.stop_token_ids_max));
    }
    TRY(const auto id, read_integer(item, {0, kTokenIdMax}));
    out.stop_token_ids.push_back(static_cast<TokenId>(id));
  }
  return {};
}

Status read_stream(JsonRef body, ChatRequest& request) {
  if (const auto stream = optional_member(body, "stream")) {
    TRY(request.stream, read_bool(stream));
  }
  const auto options = optional_member(body, "stream_options");
  if (!options) return {};
  TRY_STATUS(expect_object(options));
  if (!request.stream) return invalid_value(options, "is only allowed with \"stream\": true");
  if (const auto include = optional_member(options, "include_usage")) {
    TRY(request.include_usage, read_bool(include));
  }
  if (const auto obfuscate = optional_member(options, "include_obfuscation")) {
    TRY_STATUS(read_bool(obfuscate));
  }
  return {};
}

Status read_thinking(JsonRef body, ChatRequest& request) {
  if (const auto effort = optional_member(body, "reasoning_effort")) {
    TRY_STATUS(read_effort(effort, request));
  }
  if (const auto thinking = optional_member(body, "thinking")) {
    TRY_STATUS(expect_object(thinking));
    TRY(const auto type, required_member(thinking, "type"));
    TRY(const auto index, read_choice(type, {"enabled", "disabled", "adaptive"}));
    constexpr Thinking kModes[] = {Thinking::kEnabled, Thinking::kDisabled, Thinking::kDefault};
    request.conversation.thinking = kModes[index];
  }
  return {};
}

}  // namespace

Result<ChatRequest> parse_chat_request(std::string_view body, const ChatLimits& limits) {
  TRY(const auto document, JsonDocument::parse(body, limits.json));
  const auto root = document.root();
  TRY_STATUS(expect_object(root));
  ChatRequest request;
  TRY_STATUS(read_identity(root, request));
  if (const auto format = optional_member(root, "response_format"))
    TRY_STATUS(read_answer_format(format, request));
  TRY_STATUS(refuse_unsupported(root));
  TRY_STATUS(read_messages(root, request.conversation));
  TRY_STATUS(read_tools(root, limits, request));
  TRY_STATUS(read_sampling(root, limits, request));
  if (const auto stop = optional_member(root, "stop")) {
    TRY_STATUS(read_stop_strings(stop, limits, request.stop));
  }
  TRY_STATUS(read_stop_token_ids(root, limits, request.sampling));
  TRY_STATUS(read_stream(root, request));
  TRY_STATUS(read_thinking(root, request));
  return request;
}

}  // namespace penstock::protocol
