#include "core/prompt/jinja/lexer.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>

#include "base/hex.h"
#include "base/utf8.h"

namespace penstock::jinja {
namespace {

using Kind = Token::Kind;

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name(char c) {
  return is_name_start(c) || is_digit(c);
}

// Newlines of every kind as "\n", and without the last one.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)), text_(source_) {}

  Fallible<std::vector<Token>> run() {
    while (at_ < text_.size()) {
      if (auto done = next_part(); !done) return std::unexpected(std::move(done.error()));
    }
    add(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  Fallible<void> next_part();
  Fallible<void> comment();
  Fallible<void> inside(std::string_view end_mark, Kind end_kind);
  Fallible<bool> raw();
  Fallible<void> string();
  void number();
  Fallible<void> op();
  Fallible<void> escape(std::string& out);
  void data(std::size_t begin, std::size_t end, char sign, bool block);

  void add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  // Takes the source up to `end`.
  void advance(std::size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    if (end > at_) line_starting_ = text_[end - 1] == '\n';
    at_ = end;
  }
  bool has(std::string_view mark, std::size_t at) const {
    return text_.substr(std::min(at, text_.size())).starts_with(mark);
  }
  std::size_t space_end(std::size_t at) const {
    while (at < text_.size()) {
      const Character c = character_at(text_, at);
      if (!is_space(c.code)) break;
      at += c.length;
    }
    return at;
  }
  // Behind an end of a tag at `at`; 0 when there is none.
  std::size_t tag_end(std::string_view mark, std::size_t at, bool trims) const {
    if (has("-", at) && has(mark, at + 1)) return space_end(at + 1 + mark.size());
    if (trims && has("+", at) && has(mark, at + 1)) return at + 1 + mark.size();
    if (!has(mark, at)) return 0;
    const std::size_t end = at + mark.size();
    return trims && has("\n", end) ? end + 1 : end;
  }
  char sign_at(std::size_t at) const {
    return at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at] : ' ';
  }
  std::unexpected<Failure> fail(std::string why) const {
    return std::unexpected(Failure{std::move(why), line_, false});
  }

  std::string source_;
  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

// Text before a tag whose sign is given; `block` when the tag takes the blanks before it.
void Lexer::data(std::size_t begin, std::size_t end, char sign, bool block) {
  std::string_view part = text_.substr(begin, end - begin);
  if (sign == '-') {
    part = part.substr(
        0, strip(Text(std::string(part), Origin::kTemplate), Ends::kRight, nullptr).size());
  } else if (block && sign != '+') {
    const std::size_t newline = part.rfind('\n');
    const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    const bool at_line = line > 0 || line_starting_;
    if (at_line && line < part.size() && space_end(begin + line) >= end)
      part = part.substr(0, line);
  }
  if (!part.empty()) add(Kind::kData, std::string(part));
}

Fallible<void> Lexer::next_part() {
  std::size_t begin = at_;
  constexpr std::string_view kMarks = "{%#";
  while (true) {
    begin = text_.find('{', begin);
    if (begin == std::string_view::npos || begin + 1 >= text_.size()) {
      add(Kind::kData, std::string(text_.substr(at_)));
      advance(text_.size());
      return {};
    }
    if (kMarks.find(text_[begin + 1]) != std::string_view::npos) break;
    ++begin;
  }
  const char mark = text_[begin + 1];
  const char sign = sign_at(begin + 2);
  data(at_, begin, sign, mark != '{');
  advance(begin);
  if (mark == '%') {
    auto was_raw = raw();
    if (!was_raw) return std::unexpected(std::move(was_raw.error()));
    if (*was_raw) return {};
  }
  advance(begin + 2 + (sign == ' ' ? 0 : 1));
  if (mark == '#') return comment();
  const bool block = mark == '%';
  add(block ? Kind::kBlockBegin : Kind::kVariableBegin, "");
  return inside(block ? "%}" : "}}", block ? Kind::kBlockEnd : Kind::kVariableEnd);
}

Fallible<void> Lexer::comment() {
  const std::size_t close = text_.find("#}", at_);
  if (close == std::string_view::npos) return fail("a comment, {#, isn't closed by #}");
  const bool with_sign = close > at_ && sign_at(close - 1) != ' ';
  advance(tag_end("#}", with_sign ? close - 1 : close, true));
  return {};
}

// {% raw %} ... {% endraw %}: text as it stands.
Fallible<bool> Lexer::raw() {
  const auto tag = [this](std::size_t at, std::string_view word) -> std::size_t {
    at += 2 + (sign_at(at + 2) == ' ' ? 0 : 1);
    at = space_end(at);
    return has(word, at) ? space_end(at + word.size()) : 0;
  };
  const std::size_t word_end = tag(at_, "raw");
  const std::size_t begin = word_end == 0 ? 0 : tag_end("%}", word_end, false);
  if (begin == 0) return false;
  for (std::size_t close = begin; (close = text_.find("{%", close)) != std::string_view::npos;
       ++close) {
    const std::size_t close_word = tag(close, "endraw");
    const std::size_t end = close_word == 0 ? 0 : tag_end("%}", close_word, true);
    if (end == 0) continue;
    advance(begin);
    data(begin, close, sign_at(close + 2), true);
    advance(end);
    return true;
  }
  return fail("{% raw %} isn't closed by {% endraw %}");
}

Fallible<void> Lexer::inside(std::string_view end_mark, Kind end_kind) {
  std::string brackets;
  while (true) {
    advance(space_end(at_));
    if (at_ >= text_.size()) {
      return fail(fmt::format("a tag isn't closed by {}", end_mark));
    }
    if (brackets.empty()) {
      const std::size_t end = tag_end(end_mark, at_, end_kind == Kind::kBlockEnd);
      if (end != 0) {
        add(end_kind, "");
        advance(end);
        return {};
      }
    }
    const char c = text_[at_];
    if (is_name_start(c)) {
      std::size_t end = at_;
      while (end < text_.size() && is_name(text_[end]))
        ++end;
      add(Kind::kName, std::string(text_.substr(at_, end - at_)));
      advance(end);
    } else if (is_digit(c)) {
      number();
    } else if (c == '"' || c == '\'') {
      if (auto done = string(); !done) return done;
    } else {
      if (auto done = op(); !done) return done;
      const char bracket = tokens_.back().text[0];
      if (bracket == '(' || bracket == '[' || bracket == '{') {
        brackets += bracket == '(' ? ')' : bracket == '[' ? ']' : '}';
      } else if (bracket == ')' || bracket == ']' || bracket == '}') {
        if (brackets.empty() || brackets.back() != bracket) {
          return fail(fmt::format("'{}' closes nothing that is open", bracket));
        }
        brackets.pop_back();
      }
    }
  }
}

void Lexer::number() {
  const auto digits = [this](std::size_t at) {
    while (at < text_.size() && (is_digit(text_[at]) || text_[at] == '_'))
      ++at;
    return at;
  };
  std::size_t end = at_;
  Kind kind = Kind::kInteger;
  if (text_[at_] == '0' && at_ + 1 < text_.size() &&
      std::string_view("xXoObB").contains(text_[at_ + 1])) {
    end = at_ + 2;
    while (end < text_.size() && (hex_value(text_[end]) >= 0 || text_[end] == '_'))
      ++end;
  } else {
    end = digits(at_);
    if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
      kind = Kind::kFloat;
      end = digits(end + 1);
    }
    if (end < text_.size() && (text_[end] | 0x20) == 'e') {
      const std::size_t sign = end + 1 < text_.size() && sign_at(end + 1) != ' ' ? 1 : 0;
      if (end + 1 + sign < text_.size() && is_digit(text_[end + 1 + sign])) {
        kind = Kind::kFloat;
        end = digits(end + 1 + sign);
      }
    }
  }
  std::string text(text_.substr(at_, end - at_));
  std::erase(text, '_');
  add(kind, std::move(text));
  advance(end);
}

Fallible<void> Lexer::string() {
  const char quote = text_[at_];
  std::string out;
  const std::size_t begin = at_;
  ++at_;
  while (at_ < text_.size() && text_[at_] != quote) {
    if (text_[at_] == '\\') {
      if (auto done = escape(out); !done) return done;
    } else {
      out += text_[at_++];
    }
  }
  if (at_ >= text_.size()) return fail("a string isn't closed");
  const std::size_t end = at_ + 1;
  at_ = begin;
  add(Kind::kString, std::move(out));
  advance(end);
  return {};
}

// A backslash and what belongs to it, as in Python.
Fallible<void> Lexer::escape(std::string& out) {
  if (at_ + 1 >= text_.size()) return fail("a string isn't closed");
  const char c = text_[at_ + 1];
  constexpr std::string_view kFrom = "\\'\"abfnrtv";
  constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
  if (const std::size_t simple = kFrom.find(c); simple != std::string_view::npos) {
    out += kTo[simple];
    at_ += 2;
    return {};
  }
  if (c == '\n') {
    at_ += 2;
    return {};
  }
  char32_t code = 0;
  std::size_t end = at_ + 2;
  if (c >= '0' && c <= '7') {
    for (end = at_ + 1;
         end < at_ + 4 && end < text_.size() && text_[end] >= '0' && text_[end] <= '7'; ++end)
      code = code * 8 + static_cast<char32_t>(text_[end] - '0');
  } else if (c == 'x' || c == 'u' || c == 'U') {
    const std::size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    for (std::size_t i = 0; i < count; ++i, ++end) {
      const int digit = end < text_.size() ? hex_value(text_[end]) : -1;
      if (digit < 0) return fail(fmt::format("\\{} needs {} hexadecimal digits", c, count));
      code = code << 4 | static_cast<char32_t>(digit);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      return fail("an escape in a string names no character");
    }
  } else if (c == 'N') {
    return fail("\\N{...} in strings isn't supported; write the character itself");
  } else {
    out += '\\';
    ++at_;
    return {};
  }
  append_utf8(code, out);
  at_ = end;
  return {};
}

Fallible<void> Lexer::op() {
  constexpr std::array<std::string_view, 6> kTwo = {"//", "**", "==", "!=", ">=", "<="};
  constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
  for (const std::string_view two : kTwo) {
    if (!has(two, at_)) continue;
    add(Kind::kOperator, std::string(two));
    advance(at_ + 2);
    return {};
  }
  if (kOne.find(text_[at_]) == std::string_view::npos) {
    const std::size_t length = character_at(text_, at_).length;
    return fail(fmt::format("'{}' means nothing in a tag", text_.substr(at_, length)));
  }
  add(Kind::kOperator, std::string(1, text_[at_]));
  advance(at_ + 1);
  return {};
}

}  // namespace

Fallible<std::vector<Token>> tokenize(std::string_view source) {
  if (source.size() > kSourceBytesMax) {
    return failure(fmt::format("the template has {} bytes, at most {} are read", source.size(),
                               kSourceBytesMax));
  }
  return Lexer(normalized(source)).run();
}

}  // namespace penstock::jinja
