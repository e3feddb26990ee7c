#include "core/dialects/answer_watch.h"

#include <algorithm>
#include <array>

#include "core/dialects/json_body.h"
#include "core/dialects/json_values.h"

namespace penstock::dialects {
namespace {

using namespace std::string_view_literals;

// The type of an event: its name, or what its data says.
std::string type_of(const SseEvent& event) {
  if (!event.name.empty()) return std::string(event.name);
  return string_at(event.data, {"type"}).value_or("");
}

// Whether the text has `key` as a key somewhere, with a value that does not begin with `n`ull.
// Quotes inside JSON strings are escaped, so "key" with plain quotes is never part of one.
bool has_value(std::string_view json, std::string_view quoted_key) {
  for (auto at = json.find(quoted_key); at != std::string_view::npos;
       at = json.find(quoted_key, at + 1)) {
    auto rest = json.substr(at + quoted_key.size());
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
    if (!rest.starts_with(':')) continue;
    rest.remove_prefix(1);
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
    if (!rest.starts_with('n')) return true;
  }
  return false;
}

// finish_reason of the first choice.
std::optional<std::string> finish_of(std::string_view json) {
  const auto choices = value_at(json, {"choices"});
  if (!choices) return std::nullopt;
  const auto first = first_element(*choices);
  return first ? string_at(*first, {"finish_reason"}) : std::nullopt;
}

bool is_empty_array(std::string_view json) {
  return json.size() >= 2 && json.front() == '[' &&
         json.find_first_not_of(" \t\r\n", 1) == json.size() - 1;
}

}  // namespace

void AnswerWatch::read_usage(std::string_view json) {
  const auto count = [&](std::initializer_list<std::string_view> path) -> std::uint64_t {
    const auto value = integer_at(json, path);
    return value && *value > 0 ? static_cast<std::uint64_t>(*value) : 0;
  };
  Usage usage = usage_.value_or(Usage());
  const auto cached = [&](std::initializer_list<std::string_view> path) {
    cached_told_ = cached_told_ || integer_at(json, path).has_value();
    return count(path);
  };
  const auto keep = [](std::uint64_t& field, std::uint64_t value) {
    if (value > 0) field = value;
  };
  if (api_ == WireApi::kMessages) {
    // Anthropic's input_tokens leave out what was cached; message_delta says only what is new.
    const std::uint64_t read = cached({"cache_read_input_tokens"});
    const std::uint64_t input =
        count({"input_tokens"}) + read + count({"cache_creation_input_tokens"});
    keep(usage.prompt_tokens, input);
    keep(usage.cached_tokens, read);
    keep(usage.completion_tokens, count({"output_tokens"}));
  } else if (api_ == WireApi::kResponses) {
    keep(usage.prompt_tokens, count({"input_tokens"}));
    keep(usage.cached_tokens, cached({"input_tokens_details", "cached_tokens"}));
    keep(usage.completion_tokens, count({"output_tokens"}));
    keep(usage.reasoning_tokens, count({"output_tokens_details", "reasoning_tokens"}));
  } else {
    keep(usage.prompt_tokens, count({"prompt_tokens"}));
    keep(usage.cached_tokens, cached({"prompt_tokens_details", "cached_tokens"}));
    keep(usage.completion_tokens, count({"completion_tokens"}));
    keep(usage.reasoning_tokens, std::max(count({"completion_tokens_details", "reasoning_tokens"}),
                                          count({"reasoning_tokens"})));
  }
  // An engine's slip must not make a bill that can't be.
  usage.cached_tokens = std::min(usage.cached_tokens, usage.prompt_tokens);
  usage.reasoning_tokens = std::min(usage.reasoning_tokens, usage.completion_tokens);
  usage_ = usage;
}

// llama.cpp's own account of what was cached, where usage does not say it.
void AnswerWatch::read_timings(std::string_view json) {
  if (cached_told_ || !usage_) return;
  const auto cached = integer_at(json, {"timings", "cache_n"});
  if (!cached || *cached < 0) return;
  cached_told_ = true;
  usage_->cached_tokens = std::min(static_cast<std::uint64_t>(*cached), usage_->prompt_tokens);
}

AnswerWatch::Says AnswerWatch::event(const SseEvent& event) {
  if (!event.has_data) return Says::kMore;
  switch (api_) {
    case WireApi::kMessages:
      return messages_event(event);
    case WireApi::kResponses:
      return responses_event(event);
    default:
      return chat_event(event.data);
  }
}

AnswerWatch::Says AnswerWatch::chat_event(std::string_view data) {
  if (data == "[DONE]") {
    ended_ = true;
    return Says::kEnd;
  }
  if (has_value(data, "\"error\"") && value_at(data, {"error"})) {
    ended_ = failed_ = true;
    return Says::kError;
  }
  if (has_value(data, "\"finish_reason\"")) {
    if (auto finish = finish_of(data)) finish_ = std::move(*finish);
  }
  if (!has_value(data, "\"usage\"")) return Says::kMore;
  const auto usage = value_at(data, {"usage"});
  if (!usage || *usage == "null") return Says::kMore;
  read_usage(*usage);
  read_timings(data);
  const auto choices = value_at(data, {"choices"});
  return choices && is_empty_array(*choices) ? Says::kUsageOnly : Says::kMore;
}

AnswerWatch::Says AnswerWatch::messages_event(const SseEvent& event) {
  const std::string type = type_of(event);
  if (type == "message_start") {
    if (const auto usage = value_at(event.data, {"message", "usage"})) read_usage(*usage);
  } else if (type == "message_delta") {
    if (const auto usage = value_at(event.data, {"usage"})) read_usage(*usage);
    if (auto finish = string_at(event.data, {"delta", "stop_reason"})) finish_ = std::move(*finish);
  } else if (type == "message_stop") {
    ended_ = true;
    return Says::kEnd;
  } else if (type == "error") {
    ended_ = failed_ = true;
    return Says::kError;
  }
  return Says::kMore;
}

AnswerWatch::Says AnswerWatch::responses_event(const SseEvent& event) {
  const std::string type = type_of(event);
  constexpr std::array kEnds = {"response.completed"sv, "response.incomplete"sv,
                                "response.failed"sv};
  if (std::ranges::find(kEnds, type) != kEnds.end()) {
    if (const auto usage = value_at(event.data, {"response", "usage"})) read_usage(*usage);
    finish_ = type.substr(sizeof("response.") - 1);
    ended_ = true;
    failed_ = type == "response.failed";
    return failed_ ? Says::kError : Says::kEnd;
  }
  if (type == "error") {
    ended_ = failed_ = true;
    return Says::kError;
  }
  return Says::kMore;
}

void AnswerWatch::whole(std::string_view body) {
  ended_ = true;
  if (const auto usage = value_at(body, {"usage"}); usage && *usage != "null") {
    read_usage(*usage);
    read_timings(body);
  }
  if (auto finish = finish_of(body)) {
    finish_ = std::move(*finish);
  } else if (auto reason = string_at(body, {"stop_reason"})) {
    finish_ = std::move(*reason);
  } else if (auto status = string_at(body, {"status"})) {
    finish_ = std::move(*status);
  }
}

}  // namespace penstock::dialects
