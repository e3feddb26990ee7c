#include "core/prompt/json_cursor.h"

#include <fmt/format.h>

#include "base/hex.h"

namespace penstock::prompt {
namespace {

constexpr std::string_view kLiterals[] = {"true", "false", "null"};

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

void append_json_escaped(std::string_view text, std::string& out) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
}

JsonCursor::Step JsonCursor::push(char c, std::string& out) {
  switch (at_) {
    case At::kString:
      return in_string(c, out);
    case At::kEscape:
      return in_escape(c, out);
    case At::kHex:
      return in_hex(c, out);
    case At::kNumber:
      return in_number(c, out);
    case At::kLiteral:
      if (c != literal_.front()) return Step::kBad;
      literal_.remove_prefix(1);
      return pass(c, literal_.empty() ? At::kAfterValue : At::kLiteral, out);
    case At::kEnd:
      return Step::kBad;
    default:
      return in_structure(c, out);
  }
}

JsonCursor::Step JsonCursor::pass(char c, At next, std::string& out) {
  out += held_;
  held_.clear();
  out += c;
  at_ = next;
  return Step::kMore;
}

JsonCursor::Step JsonCursor::in_structure(char c, std::string& out) {
  if (is_space(c)) {
    (held_.empty() ? out : held_) += c;
    return Step::kMore;
  }
  switch (at_) {
    case At::kFirstKey:
    case At::kKey:
      if (c == '}' && at_ == At::kFirstKey) return end_container(c, out);
      if (c != '"') return Step::kBad;
      in_key_ = true;
      return pass(c, At::kString, out);
    case At::kColon:
      return c == ':' ? pass(c, At::kValue, out) : Step::kBad;
    case At::kAfterValue:
      if (c != ',') return end_container(c, out);
      held_ += c;
      at_ = open_.back() == '{' ? At::kKey : At::kValue;
      return Step::kMore;
    case At::kFirstElement:
      if (c == ']') return end_container(c, out);
      return begin_value(c, out);
    default:
      return begin_value(c, out);
  }
}

JsonCursor::Step JsonCursor::begin_value(char c, std::string& out) {
  if (c == '{' || c == '[') {
    if (open_.size() == kDepthMax) return Step::kBad;
    open_ += c;
    return pass(c, c == '{' ? At::kFirstKey : At::kFirstElement, out);
  }
  if (open_.empty()) return Step::kBad;
  if (c == '"') {
    in_key_ = false;
    return pass(c, At::kString, out);
  }
  if (c == '-' || is_digit(c)) {
    number_ = c == '-' ? Number::kMinus : c == '0' ? Number::kZero : Number::kInt;
    return pass(c, At::kNumber, out);
  }
  for (const std::string_view literal : kLiterals) {
    if (c != literal.front()) continue;
    literal_ = literal.substr(1);
    return pass(c, At::kLiteral, out);
  }
  return Step::kBad;
}

JsonCursor::Step JsonCursor::in_string(char c, std::string& out) {
  if (c == '\\') {
    held_ += c;
    at_ = At::kEscape;
    return Step::kMore;
  }
  if (after_high_) return Step::kBad;
  if (c == '"') return pass(c, in_key_ ? At::kColon : At::kAfterValue, out);
  append_json_escaped({&c, 1}, out);
  return Step::kMore;
}

JsonCursor::Step JsonCursor::in_escape(char c, std::string& out) {
  if (c == 'u') {
    held_ += c;
    hex_ = 0;
    hex_left_ = 4;
    at_ = At::kHex;
    return Step::kMore;
  }
  constexpr std::string_view kSimple = "\"\\/bfnrt";
  if (after_high_ || kSimple.find(c) == std::string_view::npos) return Step::kBad;
  return pass(c, At::kString, out);
}

JsonCursor::Step JsonCursor::in_hex(char c, std::string& out) {
  const int digit = hex_value(c);
  if (digit < 0) return Step::kBad;
  hex_ = hex_ << 4 | static_cast<std::uint32_t>(digit);
  if (--hex_left_ > 0) {
    held_ += c;
    return Step::kMore;
  }
  const bool low = hex_ >= 0xDC00 && hex_ < 0xE000;
  if (low != after_high_) return Step::kBad;
  after_high_ = hex_ >= 0xD800 && hex_ < 0xDC00;
  if (!after_high_) return pass(c, At::kString, out);
  held_ += c;
  at_ = At::kString;
  return Step::kMore;
}

JsonCursor::Step JsonCursor::in_number(char c, std::string& out) {
  const auto go = [&](Number next) {
    number_ = next;
    return pass(c, At::kNumber, out);
  };
  const bool e = c == 'e' || c == 'E';
  switch (number_) {
    case Number::kMinus:
      if (c == '0') return go(Number::kZero);
      return is_digit(c) ? go(Number::kInt) : Step::kBad;
    case Number::kZero:
    case Number::kInt:
      if (is_digit(c)) return number_ == Number::kInt ? go(Number::kInt) : Step::kBad;
      if (c == '.') return go(Number::kDot);
      if (e) return go(Number::kE);
      break;
    case Number::kDot:
      return is_digit(c) ? go(Number::kFraction) : Step::kBad;
    case Number::kFraction:
      if (is_digit(c)) return go(Number::kFraction);
      if (e) return go(Number::kE);
      break;
    case Number::kE:
      exponent_digits_ = 1;
      if (c == '+' || c == '-') return go(Number::kSign);
      return is_digit(c) ? go(Number::kExponent) : Step::kBad;
    case Number::kSign:
      return is_digit(c) ? go(Number::kExponent) : Step::kBad;
    case Number::kExponent:
      if (is_digit(c))
        return ++exponent_digits_ > kExponentDigitsMax ? Step::kBad : go(Number::kExponent);
      break;
  }
  at_ = At::kAfterValue;
  return in_structure(c, out);
}

JsonCursor::Step JsonCursor::end_container(char c, std::string& out) {
  if (c != (open_.back() == '{' ? '}' : ']')) return Step::kBad;
  open_.pop_back();
  pass(c, open_.empty() ? At::kEnd : At::kAfterValue, out);
  return open_.empty() ? Step::kDone : Step::kMore;
}

void JsonCursor::close(std::size_t depth, std::string& out) const {
  switch (at_) {
    case At::kString:
    case At::kEscape:
    case At::kHex:
      out += in_key_ ? "\": null" : "\"";
      break;
    case At::kColon:
      out += ": null";
      break;
    case At::kValue:
      if (held_.empty()) out += "null";
      break;
    case At::kLiteral:
      out += literal_;
      break;
    case At::kNumber:
      if (number_ != Number::kZero && number_ != Number::kInt && number_ != Number::kFraction &&
          number_ != Number::kExponent) {
        out += '0';
      }
      break;
    default:
      break;
  }
  for (std::size_t i = open_.size(); i > depth; --i)
    out += open_[i - 1] == '{' ? '}' : ']';
}

}  // namespace penstock::prompt
