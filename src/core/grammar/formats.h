// The `format`s that are asserted, as patterns over the whole text.
//
// Narrower than their standards where a standard needs more than a finite automaton: fractions of a
// second have at most 12 digits, leap seconds are said in UTC only, host names have at most four
// labels of any length or ten of up to 24. Concurrency: constants. Source: RFC 3339, 3986, 5321,
// 1123, 4291, 6901, 9562.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace penstock::grammar {

std::optional<std::string> format_pattern(std::string_view format);
// "date, time, ...": for messages.
std::string format_names();

}  // namespace penstock::grammar
