#include "core/dialects/stream_replay.h"

#include <algorithm>
#include <vector>

#include "core/dialects/json_values.h"

namespace penstock::dialects {
namespace {

using namespace std::string_view_literals;

constexpr std::array kChatFields = {"content"sv, "reasoning_content"sv, "reasoning"sv};
constexpr std::array kToolFields = {"tool_calls"sv, "function_call"sv};

bool is_nothing(std::optional<std::string_view> value) {
  return !value || *value == "null" || *value == "[]";
}

}  // namespace

// What is looked at of an event with data; views into it.
struct StreamReplay::Chunk {
  bool last = false;      // [DONE]
  bool choice = false;    // it has one; if not, it may be the usage
  bool finishes = false;  // with a finish_reason
  bool has_logprobs = false;
  std::string_view id;    // as JSON; empty: none
  std::size_t field = 0;  // of its text
  std::string text;       // empty: it has none
  std::string_view text_json;
};

bool StreamReplay::repeats(const JsonBody& body, WireApi api) {
  if (api != WireApi::kChat && api != WireApi::kCompletion) return false;
  for (const std::string_view key : {"n"sv, "best_of"sv}) {
    const auto value = body.value(key);
    if (value && *value != "1" && *value != "null") return false;
  }
  const auto seed = body.value("seed");
  if (seed && integer_at(*seed, {})) return true;
  const auto temperature = body.value("temperature");
  return temperature && number_at(*temperature, {}) == 0.0;
}

std::optional<StreamReplay::Chunk> StreamReplay::read(const SseEvent& event, WireApi api) {
  Chunk chunk;
  if (event.data == "[DONE]") {
    chunk.last = true;
    return chunk;
  }
  const auto choices = value_at(event.data, {"choices"});
  const auto list = choices ? elements(*choices) : std::nullopt;
  if (!list || list->size() > 1) return std::nullopt;
  chunk.id = value_at(event.data, {"id"}).value_or("");
  if (list->empty()) return chunk;
  chunk.choice = true;
  const std::string_view choice = list->front();
  if (integer_at(choice, {"index"}).value_or(0) != 0) return std::nullopt;
  chunk.has_logprobs = !is_nothing(value_at(choice, {"logprobs"}));
  chunk.finishes = !is_nothing(value_at(choice, {"finish_reason"}));
  const auto take = [&](std::optional<std::string_view> value, std::size_t field) {
    if (is_nothing(value)) return true;
    auto text = decode_string(*value);
    if (!text) return false;
    if (text->empty()) return true;
    // Two at once could be cut in two places.
    if (!chunk.text.empty()) return false;
    chunk.field = field;
    chunk.text = std::move(*text);
    chunk.text_json = *value;
    return true;
  };
  if (api == WireApi::kCompletion)
    return take(value_at(choice, {"text"}), 0) ? std::optional(chunk) : std::nullopt;
  const auto delta = value_at(choice, {"delta"});
  if (!delta) return std::nullopt;
  for (const std::string_view key : kToolFields) {
    if (!is_nothing(value_at(*delta, {key}))) return std::nullopt;
  }
  for (std::size_t field = 0; field < kFields; ++field) {
    if (!take(value_at(*delta, {kChatFields[field]}), field)) return std::nullopt;
  }
  return chunk;
}

void StreamReplay::sent(std::string_view raw) {
  if (too_long_ || log_.size() + raw.size() > kBytesMax) {
    too_long_ = true;
    log_ = {};
    return;
  }
  log_ += raw;
}

bool StreamReplay::begin_again() {
  if (too_long_) return false;
  text_ = {};
  found_ = {};
  id_.clear();
  began_ = finished_ = false;
  bool good = true;
  SseSplitter splitter(kBytesMax + 1);
  const bool whole = splitter.feed(log_, [&](const SseEvent& event) {
    const auto chunk = good && event.has_data ? read(event, api_) : std::nullopt;
    good = good && (chunk || !event.has_data);
    if (!chunk) return;
    if (id_.empty()) id_ = chunk->id;
    began_ = began_ || chunk->choice;
    finished_ = finished_ || chunk->finishes;
    text_[chunk->field] += chunk->text;
  });
  return whole && good;
}

bool StreamReplay::caught_up() const {
  for (std::size_t field = 0; field < kFields; ++field) {
    if (found_[field] < text_[field].size()) return false;
  }
  return true;
}

// Appends the event with parts of it replaced. Data of several lines is no part of its bytes.
bool StreamReplay::pass(std::string_view raw, std::vector<Part> parts, std::string& out) {
  std::ranges::sort(parts, {}, [](const Part& part) { return part.of.data(); });
  std::string edited;
  const char* at = raw.data();
  for (const Part& part : parts) {
    if (part.of.data() < at || part.of.data() + part.of.size() > raw.data() + raw.size())
      return false;
    edited.append(at, part.of.data());
    edited += part.with;
    at = part.of.data() + part.of.size();
  }
  edited.append(at, raw.data() + raw.size());
  sent(edited);
  out += edited;
  return true;
}

StreamReplay::Says StreamReplay::event(const SseEvent& event, std::string& out) {
  if (!event.has_data) {
    out += event.raw;
    return Says::kGood;
  }
  std::vector<Part> parts;
  if (const auto id = value_at(event.data, {"id"}); id && !id_.empty() && *id != id_)
    parts.push_back({*id, id_});
  const auto chunk = read(event, api_);
  if (!chunk) {
    // Nothing is compared in it, so nothing may be left to be found.
    return caught_up() && pass(event.raw, std::move(parts), out) ? Says::kGood : Says::kDiffers;
  }
  const std::string_view text = chunk->text;
  std::size_t known = 0;  // bytes of it that the client has
  if (!text.empty()) {
    const std::string_view left =
        std::string_view(text_[chunk->field]).substr(found_[chunk->field]);
    known = std::min(left.size(), text.size());
    if (left.substr(0, known) != text.substr(0, known)) return Says::kDiffers;
    found_[chunk->field] += known;
  }
  const bool is_known = known == text.size();
  if (!caught_up())
    return is_known && !chunk->finishes && !chunk->last ? Says::kGood : Says::kDiffers;
  if (chunk->choice && is_known && (chunk->finishes ? finished_ : began_)) return Says::kGood;
  if (known > 0) {
    // What belongs to single tokens can't be shortened with the text.
    if (chunk->has_logprobs) return Says::kDiffers;
    parts.push_back({chunk->text_json, quoted(text.substr(known))});
  }
  began_ = began_ || chunk->choice;
  finished_ = finished_ || chunk->finishes;
  return pass(event.raw, std::move(parts), out) ? Says::kGood : Says::kDiffers;
}

}  // namespace penstock::dialects
