#include "app/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace penstock {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t size;
};

// Binary units first: formatting prefers them.
constexpr std::array kByteUnits = {Unit{"TiB", std::int64_t{1} << 40},
                                   Unit{"GiB", std::int64_t{1} << 30},
                                   Unit{"MiB", std::int64_t{1} << 20},
                                   Unit{"KiB", std::int64_t{1} << 10},
                                   Unit{"TB", 1'000'000'000'000},
                                   Unit{"GB", 1'000'000'000},
                                   Unit{"MB", 1'000'000},
                                   Unit{"KB", 1'000},
                                   Unit{"B", 1}};
constexpr std::array kTimeUnits = {Unit{"d", 86'400'000'000'000}, Unit{"h", 3'600'000'000'000},
                                   Unit{"min", 60'000'000'000},   Unit{"s", 1'000'000'000},
                                   Unit{"ms", 1'000'000},         Unit{"us", 1'000}};

constexpr double kExactMax = 9007199254740992.0;  // 2^53: above it a double skips integers

// NUMBER[ ]UNIT with a number >= 0; `bare` is the size of a number without a unit, 0 when not
// allowed.
template <std::size_t N>
Result<std::int64_t> parse_amount(std::string_view text, const std::array<Unit, N>& units,
                                  std::int64_t bare, std::string_view expected) {
  const auto bad = [&] {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected {}, got \"{}\"", expected, text));
  };
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(number) || number < 0 || text.front() == '-')
    return bad();
  auto name = text.substr(static_cast<std::size_t>(end - text.data()));
  if (name.starts_with(' ')) name.remove_prefix(1);
  if (name.empty() && number == 0) return 0;
  std::int64_t size = bare;
  if (!name.empty()) {
    const auto* const unit = std::ranges::find(units, name, &Unit::name);
    if (unit == units.end()) return bad();
    size = unit->size;
  }
  const double amount = number * static_cast<double>(size);
  if (size == 0 || amount > kExactMax * 1000) return bad();
  return std::llround(amount);
}

template <std::size_t N>
std::string format_amount(std::int64_t amount, const std::array<Unit, N>& units,
                          std::string_view smallest) {
  if (amount != 0) {
    for (const auto& unit : units) {
      if (amount % unit.size == 0) return fmt::format("{}{}", amount / unit.size, unit.name);
    }
  }
  return fmt::format("{}{}", amount, smallest);
}

}  // namespace

Result<Bytes> parse_bytes(std::string_view text) {
  TRY(const std::int64_t amount, parse_amount(text, kByteUnits, 1, "a size such as 64KiB or 8GiB"));
  return Bytes(amount);
}

std::string format_bytes(Bytes bytes) {
  return format_amount(bytes.value, kByteUnits, "B");
}

std::string describe_bytes(Bytes bytes) {
  for (const auto& unit : kByteUnits) {
    if (bytes.value >= unit.size && (unit.name.size() == 3 || unit.name == "B")) {
      const double amount = static_cast<double>(bytes.value) / static_cast<double>(unit.size);
      const int digits = unit.size == 1 || amount >= 100 ? 0 : amount >= 10 ? 1 : 2;
      return fmt::format("{:.{}f} {}", amount, digits, unit.name);
    }
  }
  return fmt::format("{} B", bytes.value);
}

Result<Duration> parse_duration(std::string_view text) {
  TRY(const std::int64_t amount,
      parse_amount(text, kTimeUnits, 0, "a time such as 500ms, 30s or 10min"));
  return Duration((amount + 500) / 1000 * 1000);  // whole microseconds, as they are written
}

std::string format_duration(Duration duration) {
  if (duration < Duration(1000)) return "0s";  // below a microsecond there is no unit to write
  return format_amount(duration.count() / 1000 * 1000, kTimeUnits, "us");
}

Result<std::int64_t> parse_count(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected a whole number, got \"{}\"", text));
  return value;
}

Result<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value))
    return fail(ErrorCode::kInvalidArgument, fmt::format("expected a number, got \"{}\"", text));
  return value;
}

Result<bool> parse_switch(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return fail(ErrorCode::kInvalidArgument, fmt::format("expected true or false, got \"{}\"", text));
}

bool is_assignment_name(std::string_view name) {
  constexpr std::string_view kOther = "._:/@+-";
  return !name.empty() && name.size() <= 128 && std::ranges::all_of(name, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kOther.find(c) != std::string_view::npos;
  });
}

const Assignment* find_assignment(const std::vector<Assignment>& list, std::string_view name) {
  const auto found = std::ranges::find(list, name, &Assignment::name);
  return found == list.end() ? nullptr : &*found;
}

Result<Assignment> parse_assignment(std::string_view text) {
  const auto equals = text.find('=');
  if (equals == std::string_view::npos || equals + 1 == text.size())
    return fail(ErrorCode::kInvalidArgument, fmt::format("expected NAME=VALUE, got \"{}\"", text));
  const auto name = text.substr(0, equals);
  if (!is_assignment_name(name))
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("\"{}\" is not a name: use 1 to 128 letters, digits and ._:/@+-", name));
  return Assignment{std::string(name), std::string(text.substr(equals + 1))};
}

}  // namespace penstock
