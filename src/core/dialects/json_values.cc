#include "core/dialects/json_values.h"

#include <array>
#include <charconv>
#include <cmath>

#include "core/dialects/json_body.h"

namespace penstock::dialects {
namespace {

std::optional<double> to_number(std::string_view json) {
  double value = 0;
  const auto* end = json.data() + json.size();
  const auto parsed = std::from_chars(json.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::string_view> value_at(std::string_view json, JsonPath path) {
  for (const std::string_view key : path) {
    const std::array names = {key};
    const auto body = JsonBody::read(json, names);
    if (!body) return std::nullopt;
    const auto value = body->value(key);
    if (!value) return std::nullopt;
    json = *value;
  }
  return json;
}

std::optional<std::string> string_at(std::string_view json, JsonPath path) {
  const auto value = value_at(json, path);
  return value ? decode_string(*value) : std::nullopt;
}

std::optional<double> number_at(std::string_view json, JsonPath path) {
  const auto value = value_at(json, path);
  return value ? to_number(*value) : std::nullopt;
}

std::optional<std::int64_t> integer_at(std::string_view json, JsonPath path) {
  const auto value = value_at(json, path);
  if (!value) return std::nullopt;
  std::int64_t whole = 0;
  const auto* end = value->data() + value->size();
  const auto parsed = std::from_chars(value->data(), end, whole);
  if (parsed.ec == std::errc() && parsed.ptr == end) return whole;
  const auto number = to_number(*value);
  constexpr double kExact = 9007199254740992.0;  // 2^53: beyond it a double names no one integer
  if (!number || std::trunc(*number) != *number || std::fabs(*number) > kExact) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

std::optional<std::vector<std::string_view>> elements(std::string_view json) {
  return read_array(json);
}

std::optional<std::string_view> first_element(std::string_view json) {
  const auto all = elements(json);
  return all && !all->empty() ? std::optional(all->front()) : std::nullopt;
}

}  // namespace penstock::dialects
