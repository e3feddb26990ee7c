// Single values out of JSON text by their path, as they stand: for answers of engines, of which a
// gateway reads few members and changes none.
//
// Invariants: text that is not the JSON expected has no values; nothing throws. A name that stands
// twice has none either: two readers could take different ones.
// Cost: a pass over each container on the path. Concurrency: pure. Source: RFC 8259.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::dialects {

using JsonPath = std::initializer_list<std::string_view>;

// The bytes of the value at the end of a path of member names.
std::optional<std::string_view> value_at(std::string_view json, JsonPath path);
std::optional<std::string> string_at(std::string_view json, JsonPath path);
// Whole numbers only, 3 and 3.0 alike; in the range of int64.
std::optional<std::int64_t> integer_at(std::string_view json, JsonPath path);
std::optional<double> number_at(std::string_view json, JsonPath path);

// The elements of an array, as they stand; nothing when it is none.
std::optional<std::vector<std::string_view>> elements(std::string_view json);
std::optional<std::string_view> first_element(std::string_view json);

}  // namespace penstock::dialects
