#include "core/protocol/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace penstock::protocol {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kModelBytesMax = 512;
constexpr std::size_t kMetadataMax = 16;
constexpr std::size_t kMetadataKeyChars = 64;
constexpr std::size_t kMetadataValueChars = 512;

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

// The first tool whose name an earlier one has, by index; npos when there is none.
std::size_t find_repeated_name(const std::vector<ToolDefinition>& tools) {
  std::vector<std::pair<std::string_view, std::size_t>> names;
  for (std::size_t i = 0; i < tools.size(); ++i)
    names.emplace_back(tools[i].name, i);
  std::ranges::sort(names);
  std::size_t found = std::string::npos;
  for (std::size_t i = 1; i < names.size(); ++i) {
    if (names[i].first == names[i - 1].first) found = std::min(found, names[i].second);
  }
  return found;
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

}  // namespace

bool is_function_name(std::string_view name, std::size_t bytes_max) {
  return !name.empty() && name.size() <= bytes_max && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

Status check_tool_names(JsonRef list, const std::vector<ToolDefinition>& tools) {
  const auto i = find_repeated_name(tools);
  if (i == std::string::npos) return {};
  return invalid_value(list, fmt::format("two tools are named {}", tools[i].name));
}

Status read_numbers(JsonRef body, SamplingParams& out) {
  for (const auto& field : kNumbers) {
    const auto value = optional_member(body, field.name);
    if (!value) continue;
    TRY(out.*field.member, read_number(value, field.range));
  }
  // top_p 0 means the most likely token alone; inside it is above 0.
  out.top_p = std::max(out.top_p, std::numeric_limits<float>::min());
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

Status read_effort(JsonRef effort, ChatRequest& request) {
  TRY(const auto index,
      read_choice(effort, {"none", "minimal", "low", "medium", "high", "xhigh", "max"}));
  request.reasoning_effort = static_cast<ReasoningEffort>(static_cast<int>(ReasoningEffort::kNone) +
                                                          static_cast<int>(index));
  if (request.reasoning_effort == ReasoningEffort::kNone) {
    request.conversation.thinking = Thinking::kDisabled;
  }
  return {};
}

Status read_stop_strings(JsonRef value, const ChatLimits& limits, std::vector<std::string>& out) {
  const auto read_one = [&](JsonRef item) -> Status {
    TRY(auto text, read_string(item, limits.stop_string_bytes_max));
    if (text.empty()) return invalid_value(item, "a stop string must not be empty");
    out.push_back(std::move(text));
    return {};
  };
  if (value.is_string()) return read_one(value);
  if (!value.is_array()) return invalid_type(value, "a string or an array of strings");
  for (auto item = value.first_child(); item; item = item.next_sibling()) {
    if (out.size() == limits.stop_strings_max) {
      return invalid_value(value,
                           fmt::format("holds more than {} strings", limits.stop_strings_max));
    }
    TRY_STATUS(read_one(item));
  }
  return {};
}

Status read_model(JsonRef body, ChatRequest& request) {
  TRY(const auto model, required_member(body, "model"));
  TRY(request.model, read_string(model, kModelBytesMax));
  if (request.model.empty()) return invalid_value(model, "must not be empty");
  return {};
}

Status read_answer_format(JsonRef format, ChatRequest& request) {
  TRY_STATUS(expect_object(format));
  TRY(const auto type, required_member(format, "type"));
  TRY(const auto index, read_choice(type, {"text", "json_object", "json_schema"}));
  if (index == 0) return {};
  request.constraint.kind = Constraint::Kind::kJsonObject;
  if (index == 1) return {};
  auto holder = format;
  if (const auto inner = optional_member(format, "json_schema")) {
    TRY_STATUS(expect_object(inner));
    holder = inner;
  }
  TRY(const auto name, required_member(holder, "name"));
  TRY(const auto name_text, read_string(name, kUserIdBytesMax));
  if (!is_function_name(name_text))
    return invalid_value(name, "must be 1 to 64 of letters, digits, \"_\" and \"-\"");
  const auto schema = optional_member(holder, "schema");
  if (!schema) return {};  // a schema that isn't there allows any object
  TRY_STATUS(expect_object(schema));
  request.constraint = {Constraint::Kind::kJsonSchema, std::string(schema.text()), std::nullopt};
  return {};
}

Status read_identity(JsonRef body, ChatRequest& request) {
  TRY_STATUS(read_model(body, request));
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

}  // namespace penstock::protocol
