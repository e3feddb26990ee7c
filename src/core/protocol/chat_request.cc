#include "core/protocol/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "core/protocol/chat_messages.h"
#include "core/protocol/json_fields.h"

namespace penstock::protocol {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kTokenIdMax = std::numeric_limits<TokenId>::max();
constexpr std::size_t kModelBytesMax = 512;
constexpr std::size_t kUserIdBytesMax = 512;
constexpr std::size_t kMetadataMax = 16;
constexpr std::size_t kMetadataKeyChars = 64;
constexpr std::size_t kMetadataValueChars = 512;

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
  if (const auto format = optional_member(body, "response_format")) {
    TRY_STATUS(expect_object(format));
    TRY(const auto type, required_member(format, "type"));
    TRY(const auto index, read_choice(type, {"text", "json_object", "json_schema"}));
    if (index != 0) return unsupported(type, "structured output is not supported here yet");
  }
  if (const auto modalities = optional_member(body, "modalities")) {
    TRY_STATUS(expect_array(modalities));
    for (auto item = modalities.first_child(); item; item = item.next_sibling()) {
      if (!item.equals("text")) return unsupported(item, "only text is supported here");
    }
  }
  return {};
}

struct NumberField {
  std::string_view name;
  float SamplingParams::* member;
  NumberRange range;
};
constexpr NumberField kNumbers[] = {
    {"temperature", &SamplingParams::temperature, {0, 2}},
    {"top_p", &SamplingParams::top_p, {0, 1}},
    {"min_p", &SamplingParams::min_p, {0, 1}},
    {"presence_penalty", &SamplingParams::presence_penalty, {-2, 2}},
    {"frequency_penalty", &SamplingParams::frequency_penalty, {-2, 2}},
    {"repetition_penalty", &SamplingParams::repetition_penalty, {0, 2, true}},
};

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
  for (const auto& field : kNumbers) {
    const auto value = optional_member(body, field.name);
    if (!value) continue;
    TRY(out.*field.member, read_number(value, field.range));
  }
  // top_p 0 means the most likely token alone; inside it is above 0.
  out.top_p = std::max(out.top_p, std::numeric_limits<float>::min());
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

Status read_stop(JsonRef body, const ChatLimits& limits, ChatRequest& request) {
  const auto read_one = [&](JsonRef value) -> Status {
    TRY(auto text, read_string(value, limits.stop_string_bytes_max));
    if (text.empty()) return invalid_value(value, "a stop string must not be empty");
    request.stop.push_back(std::move(text));
    return {};
  };
  if (const auto stop = optional_member(body, "stop")) {
    if (stop.is_string()) return read_one(stop);
    if (!stop.is_array()) return invalid_type(stop, "a string or an array of strings");
    for (auto item = stop.first_child(); item; item = item.next_sibling()) {
      if (request.stop.size() == limits.stop_strings_max) {
        return invalid_value(stop,
                             fmt::format("holds more than {} strings", limits.stop_strings_max));
      }
      TRY_STATUS(read_one(item));
    }
  }
  return {};
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
    TRY(const auto index,
        read_choice(effort, {"none", "minimal", "low", "medium", "high", "xhigh", "max"}));
    request.reasoning_effort = static_cast<ReasoningEffort>(
        static_cast<int>(ReasoningEffort::kNone) + static_cast<int>(index));
    if (request.reasoning_effort == ReasoningEffort::kNone) {
      request.conversation.thinking = Thinking::kDisabled;
    }
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

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

Status read_metadata(JsonRef body, ChatRequest& request) {
  const auto metadata = optional_member(body, "metadata");
  if (!metadata) return {};
  TRY_STATUS(expect_object(metadata));
  for (auto key = metadata.first_child(); key;) {
    const auto value = key.next_sibling();
    if (request.metadata.size() == kMetadataMax) {
      return invalid_value(metadata, fmt::format("holds more than {} pairs", kMetadataMax));
    }
    TRY(auto text, read_string(value));
    auto name = key.string();
    if (count_characters(name) > kMetadataKeyChars) {
      return invalid_value(value,
                           fmt::format("the key is longer than {} characters", kMetadataKeyChars));
    }
    if (count_characters(text) > kMetadataValueChars) {
      return invalid_value(value, fmt::format("is longer than {} characters", kMetadataValueChars));
    }
    request.metadata.emplace_back(std::move(name), std::move(text));
    key = value.next_sibling();
  }
  return {};
}

Status read_identity(JsonRef body, ChatRequest& request) {
  TRY(const auto model, required_member(body, "model"));
  TRY(request.model, read_string(model, kModelBytesMax));
  if (request.model.empty()) return invalid_value(model, "must not be empty");
  for (const std::string_view name : {"user_id", "safety_identifier", "user"}) {
    const auto value = optional_member(body, name);
    if (!value) continue;
    TRY(auto id, read_string(value, kUserIdBytesMax));
    if (request.user_id.empty()) request.user_id = std::move(id);
  }
  if (const auto key = optional_member(body, "prompt_cache_key")) {
    TRY(request.prompt_cache_key, read_string(key, kUserIdBytesMax));
  }
  if (const auto cache = optional_member(body, "cache_class")) {
    TRY(request.cache_class, read_string(cache, kUserIdBytesMax));
  }
  if (const auto tier = optional_member(body, "service_tier")) {
    TRY_STATUS(read_choice(tier, {"auto", "default", "flex", "scale", "priority", "fast"}));
    request.service_tier = tier.string();
  }
  if (const auto verbosity = optional_member(body, "verbosity")) {
    TRY_STATUS(read_choice(verbosity, {"low", "medium", "high"}));
  }
  return read_metadata(body, request);
}

}  // namespace

Result<ChatRequest> parse_chat_request(std::string_view body, const ChatLimits& limits) {
  TRY(const auto document, JsonDocument::parse(body, limits.json));
  const auto root = document.root();
  TRY_STATUS(expect_object(root));
  ChatRequest request;
  TRY_STATUS(read_identity(root, request));
  TRY_STATUS(refuse_unsupported(root));
  TRY_STATUS(read_messages(root, request.conversation));
  TRY_STATUS(read_tools(root, limits, request));
  TRY_STATUS(read_sampling(root, limits, request));
  TRY_STATUS(read_stop(root, limits, request));
  TRY_STATUS(read_stop_token_ids(root, limits, request.sampling));
  TRY_STATUS(read_stream(root, request));
  TRY_STATUS(read_thinking(root, request));
  return request;
}

}  // namespace penstock::protocol
