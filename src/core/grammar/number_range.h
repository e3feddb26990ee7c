// Automata of JSON numbers between bounds, digit by digit, without exponent.
//
// Bounds are decimal, so 0.1 is exactly that. Numbers have at most CommonRules::kDigitsMax digits
// before the point and after it. Errors: over limits, as text_automaton.h. Concurrency: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/grammar/text_automaton.h"

namespace penstock::grammar {

struct Decimal {
  bool negative = false;
  std::string whole = "0";  // no leading zeros
  std::string fraction;     // no trailing zeros

  bool zero() const { return whole == "0" && fraction.empty(); }
  // "-12.5", "1e+20"; nullopt when it isn't a number or has more than 40 digits on a side.
  static std::optional<Decimal> parse(std::string_view text);
};

struct NumberBound {
  Decimal value;
  bool inclusive = true;
};

struct NumberRange {
  std::optional<NumberBound> min;
  std::optional<NumberBound> max;
  std::optional<Decimal> multiple_of;  // positive
  bool whole = false;                  // integers only
};

// kUnsupported when multiple_of has more than 4 digits that count, or more than 6 decimals.
Result<TextAutomaton> number_automaton(const NumberRange& range, const GrammarLimits& limits);

}  // namespace penstock::grammar
