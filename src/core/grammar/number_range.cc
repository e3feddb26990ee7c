#include "core/grammar/number_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/grammar/common_rules.h"

namespace penstock::grammar {
namespace {

constexpr std::size_t kDigits = CommonRules::kDigitsMax;
constexpr std::string_view kAnyFraction = "(\\.[0-9]+)?";
constexpr std::string_view kNotAllZeros = "[0-9]*[1-9][0-9]*";

std::string any_digits(std::size_t count) {
  return count == 0 ? "" : fmt::format("[0-9]{{{}}}", count);
}

// Alternatives in parentheses; "" (nothing matches) only where the caller knows there are some.
struct Alternatives {
  std::string text;
  void add(std::string_view pattern) { text += (text.empty() ? "" : "|") + std::string(pattern); }
  std::string group() const { return "(" + text + ")"; }
};

// As many digits as `digits`, and at least or at most it.
std::string same_length(std::string_view digits, bool at_least) {
  if (digits.empty()) return "";
  Alternatives all;
  const char d = digits[0];
  all.add(std::string(1, d) + same_length(digits.substr(1), at_least));
  if (at_least && d < '9')
    all.add(fmt::format("[{}-9]{}", static_cast<char>(d + 1), any_digits(digits.size() - 1)));
  if (!at_least && d > '0')
    all.add(fmt::format("[0-{}]{}", static_cast<char>(d - 1), any_digits(digits.size() - 1)));
  return all.group();
}

// Whole numbers without sign that are greater, or less, than `whole`; empty if there are none.
std::string whole_beyond(const std::string& whole, bool greater) {
  Alternatives all;
  if (greater) {
    std::string next = whole;
    std::size_t i = next.size();
    while (i > 0 && next[i - 1] == '9')
      next[--i] = '0';
    if (i > 0) {
      ++next[i - 1];
    } else {
      next.insert(0, 1, '1');
    }
    if (next.size() <= kDigits) all.add(same_length(next, true));
    if (next.size() < kDigits)
      all.add(fmt::format("[1-9][0-9]{{{},{}}}", next.size(), kDigits - 1));
  } else if (whole != "0") {
    all.add("0");
    if (whole.size() > 1) all.add(fmt::format("[1-9][0-9]{{0,{}}}", whole.size() - 2));
    // Of the same length, none with a leading zero: the first digit differs or the rest does.
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const char low = i == 0 ? '1' : '0';
      if (whole[i] > low) {
        all.add(fmt::format("{}[{}-{}]{}", whole.substr(0, i), low, static_cast<char>(whole[i] - 1),
                            any_digits(whole.size() - i - 1)));
      }
    }
  }
  return all.text.empty() ? "" : all.group();
}

// What may follow the whole part of the bound itself; nullopt: nothing can.
std::string fraction_at_least(std::string_view fraction, bool inclusive) {
  if (fraction.empty())
    return inclusive ? std::string(kAnyFraction) : fmt::format("\\.{}", kNotAllZeros);
  std::string tail = inclusive ? "[0-9]*" : std::string(kNotAllZeros);
  for (std::size_t i = fraction.size(); i-- > 0;) {
    Alternatives all;
    all.add(std::string(1, fraction[i]) + tail);
    if (fraction[i] < '9') all.add(fmt::format("[{}-9][0-9]*", static_cast<char>(fraction[i] + 1)));
    tail = all.group();
  }
  return "\\." + tail;
}

std::optional<std::string> fraction_at_most(std::string_view fraction, bool inclusive) {
  if (fraction.empty()) {
    if (inclusive) return "(\\.0+)?";
    return std::nullopt;
  }
  std::string tail;
  for (std::size_t i = fraction.size(); i-- > 0;) {
    Alternatives all;
    const bool last = i + 1 == fraction.size();
    if (!last) {
      all.add(fmt::format("{}({})?", fraction[i], tail));
    } else if (inclusive) {
      all.add(fmt::format("{}0*", fraction[i]));
    }
    if (fraction[i] > '0') all.add(fmt::format("[0-{}][0-9]*", static_cast<char>(fraction[i] - 1)));
    tail = all.group();
  }
  return "(\\." + tail + ")?";
}

// Numbers without sign at least, or at most, as large as the bound's magnitude.
std::string magnitude(const NumberBound& bound, bool at_least) {
  Alternatives all;
  const std::string beyond = whole_beyond(bound.value.whole, at_least);
  if (!beyond.empty()) all.add(beyond + std::string(kAnyFraction));
  const auto fraction =
      at_least ? std::optional(fraction_at_least(bound.value.fraction, bound.inclusive))
               : fraction_at_most(bound.value.fraction, bound.inclusive);
  if (fraction) all.add(bound.value.whole + *fraction);
  return all.text.empty() ? "" : all.group();
}

// One side of the range as a pattern over the whole number.
std::string side(const NumberBound& bound, bool at_least) {
  const std::string any = std::string("(0|[1-9][0-9]*)") + std::string(kAnyFraction);
  const bool away = bound.value.negative != at_least;  // the allowed ones have larger magnitude
  const std::string numbers = magnitude(bound, away);
  Alternatives all;
  if (bound.value.negative) {
    if (!numbers.empty()) all.add("-" + numbers);
    if (at_least) all.add(any);
  } else {
    if (!numbers.empty()) all.add(numbers);
    if (!at_least) all.add("-" + any);
    // A negative zero is zero.
    if (at_least && bound.value.zero() && bound.inclusive) all.add("-0(\\.0+)?");
  }
  return all.text;
}

}  // namespace

std::optional<Decimal> Decimal::parse(std::string_view text) {
  Decimal out;
  if (text.starts_with('-')) {
    out.negative = true;
    text.remove_prefix(1);
  }
  int exponent = 0;
  if (const auto e = text.find_first_of("eE"); e != std::string_view::npos) {
    std::string_view digits = text.substr(e + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    if (parsed.ec != std::errc() || exponent > 40 || exponent < -40) return std::nullopt;
    text = text.substr(0, e);
  }
  const auto point = text.find('.');
  std::string digits(text.substr(0, point));
  std::string fraction(point == std::string_view::npos ? "" : text.substr(point + 1));
  if (digits.empty() || (digits + fraction).find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  for (; exponent > 0; --exponent) {
    digits += fraction.empty() ? '0' : fraction[0];
    if (!fraction.empty()) fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    fraction.insert(0, 1, digits.empty() ? '0' : digits.back());
    if (!digits.empty()) digits.pop_back();
  }
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  fraction.erase(fraction.find_last_not_of('0') + 1);
  if (digits.size() > 40 || fraction.size() > 40) return std::nullopt;
  out.whole = digits.empty() ? "0" : digits;
  out.fraction = fraction;
  if (out.zero()) out.negative = false;
  return out;
}

Result<TextAutomaton> number_automaton(const NumberRange& range, const GrammarLimits& limits) {
  const std::string fraction =
      range.whole ? "" : fmt::format("(\\.[0-9]{{1,{}}})?", static_cast<int>(kDigits));
  TRY(TextAutomaton all,
      pattern_automaton(fmt::format("-?(0|[1-9][0-9]{{0,{}}}){}", kDigits - 1, fraction),
                        PatternMatch::kWhole, limits));
  for (const bool at_least : {true, false}) {
    const auto& bound = at_least ? range.min : range.max;
    if (!bound) continue;
    const std::string pattern = side(*bound, at_least);
    if (pattern.empty()) return TextAutomaton{};
    TRY(const TextAutomaton part, pattern_automaton(pattern, PatternMatch::kWhole, limits));
    TRY(all, intersect(all, part, limits));
  }
  if (range.multiple_of) {
    const Decimal& step = *range.multiple_of;
    const std::string digits = step.whole == "0" ? step.fraction : step.whole + step.fraction;
    std::uint32_t value = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (parsed.ec != std::errc() || value == 0 || value > 9999 || step.fraction.size() > 6) {
      return fail(ErrorCode::kUnsupported,
                  "a multipleOf with more than 4 digits or 6 decimals isn't supported");
    }
    TRY(all,
        intersect(all, multiples_automaton(value, static_cast<std::uint32_t>(step.fraction.size())),
                  limits));
  }
  return all;
}

}  // namespace penstock::grammar
