#include "core/grammar/common_rules.h"

#include <fmt/format.h>

namespace penstock::grammar {

void CommonRules::string(State from, State to) {
  if (!string_) string_ = string_rule(0, kUnbounded, false);
  builder_.call(from, *string_, to);
}

void CommonRules::string(State from, std::uint32_t min, std::uint32_t max, State to) {
  if (min == 0 && max == kUnbounded) return string(from, to);
  if (min > max) return;
  const auto found = counted_strings_.find({min, max});
  const RuleId rule =
      found != counted_strings_.end()
          ? found->second
          : counted_strings_.emplace(std::pair(min, max), string_rule(min, max, true))
                .first->second;
  builder_.call(from, rule, to);
}

GrammarBuilder::RuleId CommonRules::string_rule(std::uint32_t min, std::uint32_t max, bool counts) {
  const RuleId rule = builder_.rule(
      "a string", {.min = min,
                   .max = max,
                   .counts = counts,
                   .common = counts ? CommonRule::kCountedString : CommonRule::kString});
  const State inside = builder_.state();
  const EdgeOp tick = counts ? EdgeOp::kTick : EdgeOp::kNone;
  builder_.edge(builder_.start(rule), '"', '"', inside);
  builder_.edge(inside, '"', '"', builder_.end(rule), counts ? EdgeOp::kClose : EdgeOp::kNone);
  // Characters as they are; a character is counted at its first byte, so that none is begun in
  // vain.
  builder_.edge(inside, 0x20, 0x21, inside, tick);
  builder_.edge(inside, 0x23, 0x5B, inside, tick);
  builder_.edge(inside, 0x5D, 0x7F, inside, tick);
  for (const ByteSequence& sequence : utf8_sequences({{0x80, 0xD7FF}, {0xE000, kCodePointMax}})) {
    State at = inside;
    for (std::size_t i = 0; i < sequence.size(); ++i) {
      const State next = i + 1 == sequence.size() ? inside : builder_.state();
      builder_.edge(at, sequence[i].first, sequence[i].last, next, i == 0 ? tick : EdgeOp::kNone);
      at = next;
    }
  }
  // Escapes.
  const State escape = builder_.state();
  builder_.edge(inside, '\\', '\\', escape, tick);
  for (const char c : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'})
    builder_.edge(escape, static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c), inside);
  const auto hex = [&](State from, State to, char32_t low = 0, char32_t high = 15) {
    for (char32_t d = low; d <= high; ++d) {
      const std::uint32_t digit = d < 10 ? '0' + d : 'a' + d - 10;
      builder_.edge(from, digit, digit, to);
      if (d >= 10) builder_.edge(from, digit - 0x20, digit - 0x20, to);
    }
  };
  const State u = builder_.state();
  builder_.edge(escape, 'u', 'u', u);
  const State three = builder_.state();  // hexadecimal digits to come
  const State two = builder_.state();
  const State one = builder_.state();
  const State after_d = builder_.state();
  hex(u, three, 0, 12);
  hex(u, three, 14, 15);
  hex(u, after_d, 13, 13);
  hex(three, two);
  hex(two, one);
  hex(one, inside);
  hex(after_d, two, 0, 7);
  // d8xx to dbxx is the first half of a pair: \udcxx to \udfxx follows.
  State at = builder_.state();
  hex(after_d, at, 8, 11);
  for (int step = 0; step < 8; ++step) {
    const State next = step == 7 ? inside : builder_.state();
    switch (step) {
      case 2:
        builder_.edge(at, '\\', '\\', next);
        break;
      case 3:
        builder_.edge(at, 'u', 'u', next);
        break;
      case 4:
        hex(at, next, 13, 13);
        break;
      case 5:
        hex(at, next, 12, 15);
        break;
      default:
        hex(at, next);
        break;
    }
    at = next;
  }
  return rule;
}

void CommonRules::number(State from, State to) {
  if (!number_) number_ = number_rule(false);
  builder_.call(from, *number_, to);
}

void CommonRules::integer(State from, State to) {
  if (!integer_) integer_ = number_rule(true);
  builder_.call(from, *integer_, to);
}

GrammarBuilder::RuleId CommonRules::number_rule(bool whole) {
  const RuleId rule = builder_.rule(whole ? "an integer" : "a number",
                                    {.common = whole ? CommonRule::kInteger : CommonRule::kNumber});
  const State end = builder_.end(rule);
  const State digits = builder_.state();
  const auto digit_run = [&](State from, std::uint32_t first, int count, State to) {
    State at = from;
    for (int i = 0; i < count; ++i) {
      const State next = builder_.state();
      builder_.edge(at, i == 0 ? first : '0', '9', next);
      builder_.empty(next, to);
      at = next;
    }
  };
  builder_.edge(builder_.start(rule), '-', '-', digits);
  builder_.empty(builder_.start(rule), digits);
  const State after_whole = whole ? end : builder_.state();
  builder_.edge(digits, '0', '0', after_whole);
  digit_run(digits, '1', kDigitsMax, after_whole);
  if (whole) return rule;
  const State point = builder_.state();
  const State after_fraction = builder_.state();
  builder_.edge(after_whole, '.', '.', point);
  builder_.empty(after_whole, after_fraction);
  digit_run(point, '0', kDigitsMax, after_fraction);
  const State exponent = builder_.state();
  const State exponent_digits = builder_.state();
  builder_.edge(after_fraction, 'e', 'e', exponent);
  builder_.edge(after_fraction, 'E', 'E', exponent);
  builder_.edge(exponent, '+', '+', exponent_digits);
  builder_.edge(exponent, '-', '-', exponent_digits);
  builder_.empty(exponent, exponent_digits);
  digit_run(exponent_digits, '0', 2, end);
  builder_.empty(after_fraction, end);
  return rule;
}

// A line feed and up to kIndentMax spaces. States in a row rather than a rule that counts: what may
// follow stands in the same rule, so tokens of spaces and more are looked at once, not with each
// stack.
void CommonRules::indent(State from, State to, EdgeOp op) {
  State at = builder_.state();
  builder_.edge(from, '\n', '\n', at, op);
  builder_.empty(at, to);
  for (std::uint32_t i = 0; i < kIndentMax; ++i) {
    const State next = builder_.state();
    builder_.edge(at, ' ', ' ', next);
    builder_.empty(next, to);
    at = next;
  }
}

void CommonRules::gap(State from, State to) {
  builder_.empty(from, to);
  if (whitespace_ == Whitespace::kCompact) return;
  builder_.edge(from, ' ', ' ', to);
  indent(from, to, EdgeOp::kNone);
}

void CommonRules::colon(State from, State to) {
  const State after = builder_.state();
  builder_.edge(from, ':', ':', after);
  builder_.empty(after, to);
  if (whitespace_ == Whitespace::kLimited) builder_.edge(after, ' ', ' ', to);
}

void CommonRules::close(State from, char bracket, State to, EdgeOp op) {
  const auto byte = static_cast<std::uint8_t>(bracket);
  builder_.edge(from, byte, byte, to, op);
  if (whitespace_ == Whitespace::kCompact) return;
  const State before = builder_.state();
  builder_.edge(before, byte, byte, to);
  builder_.edge(from, ' ', ' ', before, op);
  indent(from, before, op);
}

void CommonRules::object(State from, State to) {
  const State open = builder_.state();
  const State first = builder_.state();
  const State key = builder_.state();
  const State after_key = builder_.state();
  const State before_value = builder_.state();
  const State after_value = builder_.state();
  const State comma = builder_.state();
  builder_.edge(from, '{', '{', open);
  gap(open, first);
  builder_.edge(first, '}', '}', to);
  builder_.empty(first, key);
  string(key, after_key);
  colon(after_key, before_value);
  value(before_value, after_value);
  builder_.edge(after_value, ',', ',', comma);
  gap(comma, key);
  close(after_value, '}', to);
}

void CommonRules::array(State from, State to) {
  const State open = builder_.state();
  const State first = builder_.state();
  const State item = builder_.state();
  const State after = builder_.state();
  const State comma = builder_.state();
  builder_.edge(from, '[', '[', open);
  gap(open, first);
  builder_.edge(first, ']', ']', to);
  builder_.empty(first, item);
  value(item, after);
  builder_.edge(after, ',', ',', comma);
  gap(comma, item);
  close(after, ']', to);
}

void CommonRules::value(State from, State to) {
  builder_.call(from, value_rule(), to);
}

GrammarBuilder::RuleId CommonRules::value_rule() {
  if (value_) return *value_;
  const RuleId rule = builder_.rule("a JSON value");
  value_ = rule;
  const State start = builder_.start(rule);
  const State end = builder_.end(rule);
  string(start, end);
  number(start, end);
  for (const char* word : {"true", "false", "null"})
    builder_.literal(start, word, end);
  object(start, end);
  array(start, end);
  return rule;
}

}  // namespace penstock::grammar
