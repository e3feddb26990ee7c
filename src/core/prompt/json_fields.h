// json_fields(): the members of a JSON object as a tool call's parameters: name, value, string or
// not.
//
// A string value is unescaped; any other value is its JSON text in Python style. Order and number
// text are kept; of equal names the last value counts, at the first one's place. Errors:
// kInvalidArgument when the text is not one JSON object. Concurrency: pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock::prompt {

struct JsonField {
  std::string name;
  std::string value;
  bool is_string = false;
};

Result<std::vector<JsonField>> json_fields(std::string_view json);

}  // namespace penstock::prompt
