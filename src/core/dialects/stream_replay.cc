#include "core/dialects/stream_replay.h"

#include <fmt/format.h>
#include <algorithm>
#include <vector>

#include "core/dialects/json_values.h"
#include "core/dialects/stream_chunk.h"

namespace penstock::dialects {
namespace {

using namespace std::string_view_literals;

bool is_number(std::optional<std::string_view> json, std::string_view allowed) {
  return !json || *json == allowed || *json == "null";
}

// Greedy, or drawn from a seed that the API knows.
bool is_fixed(std::optional<std::string_view> temperature, std::optional<std::string_view> seed) {
  if (seed && integer_at(*seed, {})) return true;
  return temperature && number_at(*temperature, {}) == 0.0;
}

// All of them are run by the client.
bool are_the_clients(std::optional<std::string_view> tools) {
  if (!tools || *tools == "null") return true;
  const auto list = elements(*tools);
  return list && std::ranges::all_of(*list, [](std::string_view tool) {
           const auto type = string_at(tool, {"type"});
           return type ? *type == "function" || *type == "custom" : !value_at(tool, {"type"});
         });
}

// The key before the value at `at` of the JSON text; empty where there is none.
std::string_view key_before(std::string_view data, std::size_t at) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto colon = data.substr(0, at).find_last_not_of(kSpace);
  if (colon == std::string_view::npos || data[colon] != ':') return {};
  const auto end = data.substr(0, colon).find_last_not_of(kSpace);
  if (end == std::string_view::npos || data[end] != '"') return {};
  const auto begin = data.substr(0, end).rfind('"');
  return begin == std::string_view::npos ? ""sv : data.substr(begin + 1, end - begin - 1);
}

}  // namespace

bool StreamReplay::repeats(const JsonBody& body, WireApi api) {
  if (!are_the_clients(body.value("tools"))) return false;
  if (api == WireApi::kGenerate) {
    const auto params = body.value("sampling_params");
    return params && is_number(value_at(*params, {"n"}), "1") &&
           is_fixed(value_at(*params, {"temperature"}), value_at(*params, {"seed"}));
  }
  // These APIs have no seed, and what they don't know engines ignore.
  if (api == WireApi::kMessages || api == WireApi::kResponses)
    return is_fixed(body.value("temperature"), std::nullopt);
  if (api != WireApi::kChat && api != WireApi::kCompletion) return false;
  return is_number(body.value("n"), "1") && is_number(body.value("best_of"), "1") &&
         is_fixed(body.value("temperature"), body.value("seed"));
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
  text_.clear();
  marks_.clear();
  names_.clear();
  next_number_.reset();
  created_at_.clear();
  found_.clear();
  found_marks_.clear();
  renamed_.clear();
  began_ = finished_ = false;
  bool good = true;
  SseSplitter splitter(kBytesMax + 1);
  const bool whole = splitter.feed(log_, [&](const SseEvent& event) {
    if (!event.has_data || !good) return;
    const auto chunk = read_stream_chunk(event, api_);
    good = chunk.has_value();
    if (!chunk) return;
    for (const auto& [what, name] : names_in(event, api_))
      names_.emplace(what, name);
    if (api_ == WireApi::kResponses) {
      if (const auto number = integer_at(event.data, {"sequence_number"}))
        next_number_ = *number + 1;
      if (created_at_.empty())
        created_at_ = value_at(event.data, {"response", "created_at"}).value_or("");
    }
    began_ = began_ || chunk->choice;
    finished_ = finished_ || chunk->finishes;
    if (!chunk->text.empty()) text_[chunk->channel] += chunk->text;
    // One that came twice could not be told from one that is new.
    if (!chunk->mark.empty() && !marks_.insert(chunk->mark).second && chunk->named.empty())
      good = false;
  });
  return whole && good;
}

bool StreamReplay::caught_up() const {
  if (found_marks_.size() < marks_.size()) return false;
  return std::ranges::all_of(text_, [&](const auto& sent) {
    const auto found = found_.find(sent.first);
    return found != found_.end() && found->second == sent.second.size();
  });
}

void StreamReplay::learn_names(const SseEvent& event) {
  for (const auto& [what, name] : names_in(event, api_)) {
    const auto known = names_.find(what);
    if (known != names_.end() && known->second != name)
      renamed_.insert_or_assign(std::string(name), known->second);
  }
}

// Values of members that hold names; the same text anywhere else stays.
void StreamReplay::rename(std::string_view data, std::vector<Part>& parts) const {
  for (const auto& [theirs, ours] : renamed_) {
    for (auto at = data.find(theirs); at != std::string_view::npos;
         at = data.find(theirs, at + theirs.size())) {
      if (holds_name(key_before(data, at))) parts.push_back({data.substr(at, theirs.size()), ours});
    }
  }
  if (api_ != WireApi::kResponses) return;
  if (const auto number = value_at(data, {"sequence_number"}); number && next_number_)
    parts.push_back({*number, fmt::to_string(*next_number_)});
  if (const auto created = value_at(data, {"response", "created_at"});
      created && !created_at_.empty())
    parts.push_back({*created, created_at_});
}

// Appends the event with parts of it replaced. Data of several lines is no part of its bytes.
bool StreamReplay::pass(const SseEvent& event, std::vector<Part> parts, std::string& out) {
  rename(event.data, parts);
  std::ranges::sort(parts, {}, [](const Part& part) { return part.of.data(); });
  const std::string_view raw = event.raw;
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
  if (next_number_) ++*next_number_;
  sent(edited);
  out += edited;
  return true;
}

StreamReplay::Says StreamReplay::event(const SseEvent& event, std::string& out) {
  if (!event.has_data) {
    out += event.raw;
    return Says::kGood;
  }
  const auto says = [](bool good) { return good ? Says::kGood : Says::kDiffers; };
  learn_names(event);
  const auto chunk = read_stream_chunk(event, api_);
  // Nothing is compared in it, so nothing may be left to be found.
  if (!chunk) return says(caught_up() && pass(event, {}, out));
  const std::string_view text = chunk->text;
  std::size_t known = 0;  // bytes of it that the client has
  if (const auto sent = text_.find(chunk->channel); sent != text_.end() && !text.empty()) {
    std::size_t& found = found_[chunk->channel];
    const std::string_view left = std::string_view(sent->second).substr(found);
    known = std::min(left.size(), text.size());
    if (left.substr(0, known) != text.substr(0, known)) return Says::kDiffers;
    found += known;
  }
  // Engines may name a call in each of its pieces.
  const bool mark_known = marks_.contains(chunk->mark) &&
                          (!chunk->named.empty() || !found_marks_.contains(chunk->mark));
  if (mark_known) found_marks_.insert(chunk->mark);
  const bool is_known = known == text.size() && (chunk->mark.empty() || mark_known);
  if (!caught_up()) return says(is_known && !chunk->finishes && !chunk->last);
  const bool was_sent =
      chunk->choice ? (chunk->finishes ? finished_ : began_) : mark_known || !text.empty();
  if (is_known && was_sent) return Says::kGood;
  std::vector<Part> parts;
  if (known > 0) {
    // What belongs to single tokens can't be shortened with the text.
    if (chunk->by_token) return Says::kDiffers;
    std::string rest(text.substr(known));
    if (chunk->is_ids && !rest.empty()) rest.pop_back();
    parts.push_back({chunk->text_json, chunk->is_ids ? "[" + rest + "]" : quoted(rest)});
  }
  // A call is named once.
  if (mark_known) {
    for (const std::string_view value : chunk->named)
      parts.push_back({value, "null"});
  }
  began_ = began_ || chunk->choice;
  finished_ = finished_ || chunk->finishes;
  return says(pass(event, std::move(parts), out));
}

}  // namespace penstock::dialects
