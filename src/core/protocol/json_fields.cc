#include "core/protocol/json_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace penstock::protocol {
namespace {

constexpr std::size_t kQuotedBytes = 40;

// The value as sent, cut for a message.
std::string quoted(JsonRef value) {
  const auto text = value.text();
  if (text.size() <= kQuotedBytes) return std::string(text);
  return std::string(text.substr(0, kQuotedBytes)) + "...";
}

std::unexpected<Error> at(JsonRef value, ErrorCode code, std::string_view openai_code,
                          std::string_view what) {
  auto path = value.path();
  auto message = fmt::format("{}: {}", path.empty() ? "the body" : path, what);
  return std::unexpected(
      Error{code, std::move(message), std::move(path), std::string(openai_code)});
}

}  // namespace

std::unexpected<Error> invalid_type(JsonRef value, std::string_view expected) {
  return at(value, ErrorCode::kInvalidArgument, "invalid_type",
            fmt::format("must be {}, not {}", expected, describe(value.kind())));
}

std::unexpected<Error> invalid_value(JsonRef value, std::string_view why) {
  return at(value, ErrorCode::kInvalidArgument, "invalid_value", why);
}

std::unexpected<Error> unsupported(JsonRef value, std::string_view why) {
  return at(value, ErrorCode::kUnsupported, "unsupported_parameter", why);
}

std::unexpected<Error> missing(JsonRef parent, std::string_view key) {
  auto path = parent.path();
  path += path.empty() ? "" : ".";
  path += key;
  auto message = fmt::format("{}: is required", path);
  return std::unexpected(Error{ErrorCode::kInvalidArgument, std::move(message), std::move(path),
                               "missing_required_parameter"});
}

JsonRef optional_member(JsonRef object, std::string_view key) {
  const auto value = object.find(key);
  return value && !value.is_null() ? value : JsonRef();
}

Result<JsonRef> required_member(JsonRef object, std::string_view key) {
  const auto value = object.find(key);
  if (!value || value.is_null()) return missing(object, key);
  return value;
}

Status expect_object(JsonRef value) {
  if (!value.is_object()) return invalid_type(value, "an object");
  return {};
}

Status expect_array(JsonRef value) {
  if (!value.is_array()) return invalid_type(value, "an array");
  return {};
}

Result<std::string> read_string(JsonRef value) {
  if (!value.is_string()) return invalid_type(value, "a string");
  return value.string();
}

Result<std::string> read_string(JsonRef value, std::size_t bytes_max) {
  TRY(auto text, read_string(value));
  if (text.size() > bytes_max) {
    return invalid_value(value, fmt::format("is longer than {} bytes", bytes_max));
  }
  return text;
}

Result<bool> read_bool(JsonRef value) {
  if (!value.is_bool()) return invalid_type(value, "a boolean");
  return value.kind() == JsonKind::kTrue;
}

Result<std::int64_t> read_integer(JsonRef value, IntegerRange range) {
  if (!value.is_number()) return invalid_type(value, "an integer");
  const auto number = value.integer();
  if (!number || *number < range.min || *number > range.max) {
    return invalid_value(value, fmt::format("must be an integer from {} to {}, not {}", range.min,
                                            range.max, quoted(value)));
  }
  return *number;
}

Result<float> read_number(JsonRef value, NumberRange range) {
  if (!value.is_number()) return invalid_type(value, "a number");
  const double number = value.number();
  const auto narrow = static_cast<float>(number);
  const bool low = range.above_min ? narrow <= static_cast<float>(range.min) : number < range.min;
  if (low || number > range.max) {
    return invalid_value(value, fmt::format("must be {} {} and at most {}, not {}",
                                            range.above_min ? "above" : "at least", range.min,
                                            range.max, quoted(value)));
  }
  return narrow;
}

Result<std::size_t> read_choice(JsonRef value, std::initializer_list<std::string_view> names) {
  if (!value.is_string()) return invalid_type(value, "a string");
  const auto* found = std::ranges::find_if(names, [&](auto name) { return value.equals(name); });
  if (found == names.end()) {
    return invalid_value(
        value, fmt::format("must be one of {}, not {}", fmt::join(names, ", "), quoted(value)));
  }
  return static_cast<std::size_t>(found - names.begin());
}

}  // namespace penstock::protocol
