// Reading typed fields out of a JsonRef, with errors that name the path. Internal to core/protocol.
//
// A reader of an optional field takes null as absent. Errors: kInvalidArgument with code
// invalid_type, invalid_value or missing_required_parameter. Concurrency: pure.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "core/protocol/json_document.h"

namespace penstock::protocol {

// "`path`: what", with the path as field.
std::unexpected<Error> invalid_type(JsonRef value, std::string_view expected);
std::unexpected<Error> invalid_value(JsonRef value, std::string_view why);
std::unexpected<Error> unsupported(JsonRef value, std::string_view why);
std::unexpected<Error> missing(JsonRef parent, std::string_view key);

// The member, unless it is absent or null.
JsonRef optional_member(JsonRef object, std::string_view key);
// The member; an error when it is absent or null.
Result<JsonRef> required_member(JsonRef object, std::string_view key);

Status expect_object(JsonRef value);
Status expect_array(JsonRef value);
Result<std::string> read_string(JsonRef value);
// At most `bytes_max` bytes.
Result<std::string> read_string(JsonRef value, std::size_t bytes_max);
Result<bool> read_bool(JsonRef value);

struct IntegerRange {
  std::int64_t min = 0;
  std::int64_t max = 0;
};
Result<std::int64_t> read_integer(JsonRef value, IntegerRange range);

struct NumberRange {
  double min = 0;
  double max = 0;
  bool above_min = false;  // min itself is out
};
Result<float> read_number(JsonRef value, NumberRange range);

// The index of the string among `names`, or an error that lists them.
Result<std::size_t> read_choice(JsonRef value, std::initializer_list<std::string_view> names);

}  // namespace penstock::protocol
