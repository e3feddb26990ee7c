#include "core/prompt/python_call.h"

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "base/hex.h"

namespace penstock::prompt {
namespace {

constexpr std::size_t kNameMax = 256;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// A code point as JSON escapes.
std::string escaped(std::uint32_t code) {
  if (code < 0x10000) return fmt::format("\\u{:04x}", code);
  code -= 0x10000;
  return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF));
}

}  // namespace

CallReader::Step PythonCall::push(char c, std::vector<OutputEvent>& events) {
  rest_ += c;
  json_text_.clear();
  if (!take(c)) {
    json_.cut(events);
    return Step::kNotACall;
  }
  for (const char j : json_text_) {
    const Step step = json_.push(j, events);
    if (step != Step::kMore) return step;
  }
  if (json_.begun() && !json_text_.empty()) rest_.clear();
  return Step::kMore;
}

bool PythonCall::take(char c) {
  switch (state_) {
    case State::kName:
    case State::kParenthesis:
      return in_name(c);
    case State::kKey:
    case State::kEquals:
      return in_key(c);
    case State::kValue:
      return in_value(c);
    case State::kDictKey:
      if (is_space(c)) return true;
      if (c == '}') return close(c);
      if (c != '"' && c != '\'') return false;
      begin_string(c, State::kColon);
      return true;
    case State::kColon:
      if (is_space(c)) return true;
      json_text_ += ": ";
      state_ = State::kValue;
      return c == ':';
    case State::kString:
      return in_string(c);
    case State::kEscape:
      return in_escape(c);
    case State::kHex:
      return in_hex(c);
    case State::kNumber:
      if (is_digit(c) || c == '.' || c == 'e' || c == 'E' || c == '-' || c == '+') {
        json_text_ += c;
        return true;
      }
      state_ = State::kAfterValue;
      return after_value(c);
    case State::kWord:
      return in_word(c);
    case State::kAfterValue:
      break;
  }
  return after_value(c);
}

bool PythonCall::in_name(char c) {
  if (is_space(c)) {
    if (!name_.empty()) state_ = State::kParenthesis;
    return true;
  }
  if (c == '(') {
    open_ = "(";
    state_ = State::kKey;
    return !name_.empty();
  }
  name_ += c;
  const bool part = is_letter(c) || is_digit(c) || c == '.' || c == '-';
  return part && state_ == State::kName && name_.size() <= kNameMax;
}

// A call is one for sure with its first argument, or without any: not "f(x) is ...".
void PythonCall::begin_call() {
  if (name_.empty()) return;
  json_text_.append("{\"name\": \"").append(name_).append("\", \"arguments\": {");
  name_.clear();
}

bool PythonCall::in_key(char c) {
  if (is_space(c)) {
    if (!word_.empty()) state_ = State::kEquals;
    return true;
  }
  if (c == '=' && !word_.empty()) {
    begin_call();
    begin_item();
    json_text_.append("\"").append(word_).append("\": ");
    word_.clear();
    state_ = State::kValue;
    return true;
  }
  if (c == ')' && word_.empty()) {
    begin_call();
    return close(c);
  }
  word_ += c;
  const bool part = is_letter(c) || (is_digit(c) && word_.size() > 1);
  return part && state_ == State::kKey && word_.size() <= kNameMax;
}

// Inside a list an end may come instead: of an empty one, or behind a comma.
bool PythonCall::in_value(char c) {
  if (is_space(c)) return true;
  if (c == ']' && open_.back() == '[') return close(c);
  if (c == '"' || c == '\'') {
    begin_string(c, State::kAfterValue);
    return true;
  }
  begin_item();
  if (c == '[' || c == '{') {
    json_text_ += c;
    open_ += c;
    state_ = c == '[' ? State::kValue : State::kDictKey;
    return true;
  }
  if (is_digit(c) || c == '-' || c == '+') {
    if (c != '+') json_text_ += c;
    state_ = State::kNumber;
    return true;
  }
  word_ = c;
  state_ = State::kWord;
  return is_letter(c);
}

bool PythonCall::in_string(char c) {
  if (c == quote_) {
    json_text_ = "\"";
    state_ = after_string_;
  } else if (c == '\\') {
    state_ = State::kEscape;
  } else {
    if (c == '"') json_text_ = "\\";
    json_text_ += c;
  }
  return true;
}

bool PythonCall::in_escape(char c) {
  constexpr std::string_view kSame = "\\\"nrtbf";
  state_ = State::kString;
  if (kSame.find(c) != std::string_view::npos) {
    json_text_ = {'\\', c};
  } else if (c == '\'') {
    json_text_ = c;
  } else if (c == 'a' || c == 'v') {
    json_text_ = escaped(c == 'a' ? 0x07 : 0x0B);
  } else if (c == 'x' || c == 'u' || c == 'U') {
    hex_left_ = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    code_ = 0;
    state_ = State::kHex;
  } else if (is_digit(c)) {
    return false;
  } else if (c != '\n') {
    // To Python the backslash of an unknown escape is text; one before the end of a line is none.
    json_text_ = {'\\', '\\', c};
  }
  return true;
}

bool PythonCall::in_hex(char c) {
  const int digit = hex_value(c);
  if (digit < 0) return false;
  code_ = code_ * 16 + static_cast<std::uint32_t>(digit);
  if (--hex_left_ > 0) return true;
  state_ = State::kString;
  if (code_ > 0x10FFFF) return false;
  json_text_ = escaped(code_);
  return true;
}

bool PythonCall::in_word(char c) {
  constexpr std::size_t kWordMax = 5;
  if (is_letter(c)) {
    word_ += c;
    return word_.size() <= kWordMax;
  }
  if (word_ == "True" || word_ == "true") {
    json_text_ = "true";
  } else if (word_ == "False" || word_ == "false") {
    json_text_ = "false";
  } else if (word_ == "None" || word_ == "null") {
    json_text_ = "null";
  } else {
    return false;
  }
  word_.clear();
  state_ = State::kAfterValue;
  return after_value(c);
}

bool PythonCall::after_value(char c) {
  if (is_space(c)) return true;
  if (c != ',') return close(c);
  comma_ = true;
  const char in = open_.back();
  state_ = in == '(' ? State::kKey : in == '[' ? State::kValue : State::kDictKey;
  return true;
}

bool PythonCall::close(char c) {
  const char in = open_.back();
  if (c != (in == '(' ? ')' : in == '[' ? ']' : '}')) return false;
  open_.pop_back();
  comma_ = false;
  json_text_ += in == '(' ? std::string_view("}}") : std::string_view(&c, 1);
  state_ = State::kAfterValue;
  return true;
}

void PythonCall::begin_item() {
  if (comma_) json_text_ += ", ";
  comma_ = false;
}

void PythonCall::begin_string(char quote, State after) {
  begin_item();
  json_text_ += '"';
  quote_ = quote;
  after_string_ = after;
  state_ = State::kString;
}

}  // namespace penstock::prompt
