#include "core/prompt/json_fields.h"

#include <boost/json.hpp>

#include "core/prompt/json_spacing.h"

namespace penstock::prompt {

Result<std::vector<JsonField>> json_fields(std::string_view json) {
  boost::system::error_code error;
  boost::json::parse_options options;
  options.max_depth = 128;
  const boost::json::value value = boost::json::parse(json, error, {}, options);
  if (error) return fail(ErrorCode::kInvalidArgument, error.message());
  if (!value.is_object()) return fail(ErrorCode::kInvalidArgument, "it is not an object");
  std::vector<JsonField> fields;
  for (const auto& [name, member] : value.get_object()) {
    JsonField field{std::string(name), {}, member.is_string()};
    if (field.is_string) {
      field.value = member.get_string();
    } else {
      TRY(field.value, python_style(boost::json::serialize(member)));
    }
    fields.push_back(std::move(field));
  }
  return fields;
}

}  // namespace penstock::prompt
