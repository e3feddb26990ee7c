// Values as people write them: 8GiB, 30s, NAME=VALUE; parsed and printed exactly.
//
// Invariants: parse(format(x)) == x. Formats use the largest unit that divides the value, so
// nothing is rounded; describe_bytes() is for reading only. Errors: kInvalidArgument saying what is
// expected, without the option's name (the caller adds it). Concurrency: pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "app/options.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock {

// "8GiB", "1.5MiB", "64KB", "4096" (bytes). Units: B KB MB GB TB (powers of 1000), KiB MiB GiB TiB.
Result<Bytes> parse_bytes(std::string_view text);
std::string format_bytes(Bytes bytes);
// "2.8 GiB": three digits, for people.
std::string describe_bytes(Bytes bytes);

// "30s", "1.5min", "250ms". Units: us ms s min h d; only 0 needs none.
Result<Duration> parse_duration(std::string_view text);
std::string format_duration(Duration duration);

Result<std::int64_t> parse_count(std::string_view text);
Result<double> parse_number(std::string_view text);
Result<bool> parse_switch(std::string_view text);  // true or false

// NAME=VALUE; the name is 1 to 128 characters of [A-Za-z0-9._:/@+-].
Result<Assignment> parse_assignment(std::string_view text);
bool is_assignment_name(std::string_view name);
// The one of that name, or nullptr.
const Assignment* find_assignment(const std::vector<Assignment>& list, std::string_view name);

}  // namespace penstock
