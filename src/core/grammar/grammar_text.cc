#include "core/grammar/grammar_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/hex.h"
#include "base/utf8.h"
#include "core/grammar/json_schema.h"

namespace penstock::grammar {
namespace {

bool name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

}  // namespace

void GrammarReader::skip() {
  for (;;) {
    while (at_ < text_.size() && std::string_view(" \t\r\n").contains(text_[at_]))
      ++at_;
    if (!next_is(comment_)) return;
    at_ = std::min(text_.find('\n', at_), text_.size());
  }
}

bool GrammarReader::take(std::string_view word) {
  if (!next_is(word)) return false;
  at_ += word.size();
  return true;
}

std::string_view GrammarReader::peek_name() const {
  std::size_t end = at_;
  while (end < text_.size() && name_byte(text_[end]))
    ++end;
  return text_.substr(at_, end - at_);
}

std::string_view GrammarReader::name() {
  const std::string_view found = peek_name();
  at_ += found.size();
  return found;
}

std::uint32_t GrammarReader::line() const {
  return static_cast<std::uint32_t>(1 + std::ranges::count(text_.substr(0, at_), '\n'));
}

std::unexpected<Error> GrammarReader::error(std::string_view what) const {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("the grammar has {} in line {}", what, line()));
}

Result<std::string> GrammarReader::quoted() {
  std::string out;
  take("\"");
  while (!at_end() && !next_is("\"") && !next_is("\n")) {
    if (!take("\\")) {
      out += text_[at_++];
      continue;
    }
    if (at_end()) break;
    const char c = text_[at_++];
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      char32_t code = 0;
      for (std::size_t i = 0; i < digits; ++i, ++at_) {
        const int value = at_end() ? -1 : hex_value(text_[at_]);
        if (value < 0) return error("an escape with too few digits");
        code = code * 16 + static_cast<char32_t>(value);
      }
      if (normalized({{code, code}}).empty()) return error("an escape of no character");
      append_utf8(code, out);
      continue;
    }
    const auto known = std::string_view("nrt\"\\/[]'bf0").find(c);
    if (known == std::string_view::npos) return error("an escape that doesn't exist");
    constexpr std::string_view kMeanings("\n\r\t\"\\/[]'\b\f\0", 12);
    out += kMeanings[known];
  }
  if (!take("\"")) return error("a quote without its partner");
  return out;
}

Result<std::string> GrammarReader::up_to(char end) {
  std::string out;
  while (!at_end() && text_[at_] != end && text_[at_] != '\n') {
    if (text_[at_] == '\\' && at_ + 1 < text_.size()) out += text_[at_++];
    out += text_[at_++];
  }
  if (at_end() || text_[at_] != end) return error(fmt::format("no {:?} to its end", end));
  ++at_;
  return out;
}

Result<std::string> GrammarReader::braced() {
  const std::size_t begin = at_;
  int depth = 0;
  bool in_string = false;
  for (; at_ < text_.size(); ++at_) {
    const char c = text_[at_];
    if (in_string) {
      if (c == '\\') ++at_;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      ++at_;
      return std::string(text_.substr(begin, at_ - begin));
    }
    if (depth == 0) break;
  }
  at_ = begin;
  return error("a schema that isn't {...}");
}

Result<std::uint32_t> GrammarReader::number() {
  std::uint32_t value = 0;
  const std::size_t begin = at_;
  while (!at_end() && text_[at_] >= '0' && text_[at_] <= '9') {
    value = value * 10 + static_cast<std::uint32_t>(text_[at_++] - '0');
    if (value > 100'000'000) return error("a number that is too large");
  }
  if (at_ == begin) return error("no number where one belongs");
  return value;
}

// ---------------------------------------------------------------------------------- emission

bool GrammarText::define(const std::string& name, Expression expression) {
  return definitions_.emplace(name, std::move(expression)).second;
}

Result<std::shared_ptr<const Grammar>> GrammarText::build(const std::string& root) {
  if (!definitions_.contains(root)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the grammar has no rule \"{}\" to begin with", root));
  }
  rules_.emplace(root, builder_.rule("the rule \"" + root + "\""));
  for (const auto& [name, expression] : definitions_) {
    if (name != root) rules_.emplace(name, builder_.rule("the rule \"" + name + "\""));
  }
  for (const auto& [name, expression] : definitions_) {
    const auto rule = rules_.at(name);
    TRY_STATUS(emit(expression, builder_.start(rule), builder_.end(rule)));
  }
  return builder_.build();
}

Status GrammarText::emit(const Expression& e, GrammarBuilder::State from,
                         GrammarBuilder::State to) {
  if (!builder_.within_limits()) return {};  // build() says so
  switch (e.kind) {
    case Expression::Kind::kText:
      builder_.literal(from, e.text, to);
      return {};
    case Expression::Kind::kToken:
      builder_.edge(from, kTokenSymbol + e.min, kTokenSymbol + e.min, to);
      return {};
    case Expression::Kind::kPattern: {
      TRY(const TextAutomaton automaton, pattern_automaton(e.text, PatternMatch::kWhole, limits_));
      builder_.text(from, automaton, Spelling::kRaw, to);
      return {};
    }
    case Expression::Kind::kRule: {
      const auto found = rules_.find(e.text);
      if (found == rules_.end()) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("the grammar uses \"{}\" in line {}, which it doesn't define",
                                e.text, e.line));
      }
      builder_.call(from, found->second, to);
      return {};
    }
    case Expression::Kind::kJsonSchema:
      return add_json_schema(common_, e.text, e.parts.empty() ? "" : e.parts[0].text, limits_, from,
                             to);
    case Expression::Kind::kWithout: {
      TextAutomaton automaton = texts_without(e.parts[0].text);
      for (std::size_t i = 1; i < e.parts.size(); ++i) {
        TRY(automaton, intersect(automaton, texts_without(e.parts[i].text), limits_));
      }
      builder_.text(from, automaton, Spelling::kRaw, to);
      return {};
    }
    case Expression::Kind::kAlternatives:
      for (const Expression& part : e.parts)
        TRY_STATUS(emit(part, from, to));
      return {};
    case Expression::Kind::kRepeat:
      return emit_repeat(e, from, to);
    case Expression::Kind::kSequence:
      break;
  }
  GrammarBuilder::State at = from;
  for (const Expression& part : e.parts) {
    const auto next = builder_.state();
    TRY_STATUS(emit(part, at, next));
    at = next;
  }
  builder_.empty(at, to);
  return {};
}

Status GrammarText::emit_repeat(const Expression& e, GrammarBuilder::State from,
                                GrammarBuilder::State to) {
  GrammarBuilder::State at = from;
  const auto once = [&]() -> Status {
    const auto next = builder_.state();
    TRY_STATUS(emit(e.parts[0], at, next));
    at = next;
    return {};
  };
  for (std::uint32_t i = 0; i < e.min && builder_.within_limits(); ++i)
    TRY_STATUS(once());
  if (e.max == kUnbounded) {
    const auto loop = builder_.state();
    builder_.empty(at, loop);
    at = loop;
    TRY_STATUS(once());
    builder_.empty(at, loop);
    builder_.empty(loop, to);
    return {};
  }
  for (std::uint32_t i = e.min; i < e.max && builder_.within_limits(); ++i) {
    builder_.empty(at, to);
    TRY_STATUS(once());
  }
  builder_.empty(at, to);
  return {};
}

}  // namespace penstock::grammar
