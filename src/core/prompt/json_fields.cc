#include "core/prompt/json_fields.h"

#include <algorithm>
#include <boost/json.hpp>

#include "core/prompt/json_spacing.h"

namespace penstock::prompt {
namespace {

// Both take valid JSON in Python style and the place where a string or a value begins, and return
// the place just after it.
std::size_t string_end(std::string_view json, std::size_t at) {
  for (++at; json[at] != '"'; ++at) {
    if (json[at] == '\\') ++at;
  }
  return at + 1;
}

std::size_t value_end(std::string_view json, std::size_t at) {
  int depth = 0;
  while (at < json.size()) {
    const char c = json[at];
    if (c == '"') {
      at = string_end(json, at);
      continue;
    }
    if (depth == 0 && (c == ',' || c == '}')) break;
    depth += (c == '{' || c == '[' ? 1 : 0) - (c == '}' || c == ']' ? 1 : 0);
    ++at;
  }
  return at;
}

std::string unescaped(std::string_view quoted) {
  return std::string(boost::json::parse(quoted).as_string());
}

}  // namespace

Result<std::vector<JsonField>> json_fields(std::string_view json) {
  // The tree only tells whether the text is valid: it would lose the numbers' own text.
  boost::system::error_code error;
  boost::json::parse_options options;
  options.max_depth = 128;
  const boost::json::value value = boost::json::parse(json, error, {}, options);
  if (error) return fail(ErrorCode::kInvalidArgument, error.message());
  if (!value.is_object()) return fail(ErrorCode::kInvalidArgument, "it is not an object");
  TRY(const std::string text, python_style(json));

  constexpr std::size_t kSeparator = 2;  // ", " and ": "
  std::vector<JsonField> fields;
  for (std::size_t at = 1; text[at] == '"';) {
    const std::size_t name_end = string_end(text, at);
    const std::size_t begin = name_end + kSeparator;
    const std::size_t end = value_end(text, begin);
    const std::string_view raw = std::string_view(text).substr(begin, end - begin);
    JsonField field{unescaped(std::string_view(text).substr(at, name_end - at)), std::string(raw),
                    raw.front() == '"'};
    if (field.is_string) field.value = unescaped(raw);
    const auto twin = std::ranges::find(fields, field.name, &JsonField::name);
    if (twin == fields.end()) {
      fields.push_back(std::move(field));
    } else {
      *twin = std::move(field);
    }
    at = end + (text[end] == ',' ? kSeparator : 0);
  }
  return fields;
}

}  // namespace penstock::prompt
