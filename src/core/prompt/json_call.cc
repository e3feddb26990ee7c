#include "core/prompt/json_call.h"

#include <algorithm>
#include <boost/json.hpp>

#include "core/prompt/json_fields.h"

namespace penstock::prompt {
namespace {

using Kind = OutputEvent::Kind;
using At = JsonCursor::At;

// `quoted` is a JSON string that the cursor has accepted.
std::string unescaped(std::string_view quoted) {
  boost::json::error_code error;
  const auto value = boost::json::parse(quoted, error);
  return error || !value.is_string() ? std::string() : std::string(value.get_string());
}

}  // namespace

void append_event(Kind kind, std::string_view text, std::vector<OutputEvent>& events) {
  if (text.empty()) return;
  if (!events.empty() && events.back().kind == kind) {
    events.back().text += text;
  } else {
    events.push_back({kind, std::string(text)});
  }
}

JsonCall::Step JsonCall::push(char c, std::vector<OutputEvent>& events) {
  const At before = cursor_.at();
  const std::size_t depth_before = cursor_.depth();
  std::string passed;
  const JsonCursor::Step step = cursor_.push(c, passed);
  const bool streams = begun_ && !ended_;
  if (!streams || step == JsonCursor::Step::kBad) {
    if (streams) rest_ = cursor_.held();
    rest_ += c;
  }
  if (step == JsonCursor::Step::kBad) {
    cut(events);
    return Step::kNotACall;
  }
  const At now = cursor_.at();
  const std::size_t depth = cursor_.depth();
  if (depth_before == 0 && c != '{') return Step::kNotACall;
  if (depth_before == 1 && region_ == Region::kNone && now == At::kString && cursor_.in_key()) {
    region_ = Region::kKey;
    text_ = '"';
    return Step::kMore;
  }
  if (depth_before == 1 && before == At::kValue && now != At::kValue) {
    if (!begin_value(c)) return Step::kNotACall;
    if (region_ == Region::kArguments && !name_.empty() && !ended_) {
      begin(events);
      append_event(Kind::kToolArguments, "{", events);
      rest_.clear();
    }
    return Step::kMore;
  }
  if (region_ != Region::kNone) {
    if (streams) {
      append_event(Kind::kToolArguments, passed, events);
    } else {
      text_ += passed;
    }
    // A number ends with the byte after it, which may be the comma before the next key.
    const bool over = now == At::kColon || now == At::kAfterValue || now == At::kKey;
    if (depth == 0 || (depth == 1 && over)) {
      const bool good = region_ == Region::kKey ? end_key() : end_value(events);
      region_ = Region::kNone;
      if (!good) return Step::kNotACall;
    }
  }
  if (step != JsonCursor::Step::kDone) return Step::kMore;
  if (!ended_) {
    if (name_.empty()) return Step::kNotACall;
    begin(events);
    append_event(Kind::kToolArguments, has_arguments_ ? arguments_ : "{}", events);
    end(events);
  }
  return Step::kDone;
}

bool JsonCall::end_key() {
  key_ = unescaped(text_);
  if (names_ == nullptr) return true;
  constexpr std::string_view kKeys[] = {"name", "arguments", "parameters", "type"};
  return std::ranges::find(kKeys, key_) != std::end(kKeys);
}

// The first byte of a value of the call itself.
bool JsonCall::begin_value(char c) {
  text_ = c;
  region_ = Region::kOther;
  if (ended_) return true;
  if (key_ == "name") {
    region_ = Region::kName;
    return c == '"';
  }
  if (key_ == "arguments" || key_ == "parameters") {
    region_ = c == '{' ? Region::kArguments : Region::kArgumentsText;
    return c == '{' || c == '"' || c == 'n';
  }
  return true;
}

bool JsonCall::end_value(std::vector<OutputEvent>& events) {
  switch (region_) {
    case Region::kName:
      name_ = unescaped(text_);
      if (name_.empty()) return false;
      return names_ == nullptr || std::ranges::find(*names_, name_) != names_->end();
    case Region::kArguments:
      if (begun_) {
        end(events);
      } else {
        arguments_ = text_;
        has_arguments_ = true;
      }
      return true;
    case Region::kArgumentsText:
      arguments_ = text_.front() == '"' ? unescaped(text_) : "{}";
      has_arguments_ = true;
      return json_fields(arguments_).has_value();
    default:
      return true;
  }
}

void JsonCall::begin(std::vector<OutputEvent>& events) {
  events.push_back({Kind::kToolBegin, name_});
  begun_ = true;
}

void JsonCall::end(std::vector<OutputEvent>& events) {
  events.push_back({Kind::kToolEnd, ""});
  ended_ = true;
  rest_.clear();
}

void JsonCall::cut(std::vector<OutputEvent>& events) {
  if (!begun_ || ended_) return;
  std::string closing;
  cursor_.close(1, closing);
  append_event(Kind::kToolArguments, closing, events);
  events.push_back({Kind::kToolEnd, ""});
  ended_ = true;
}

}  // namespace penstock::prompt
