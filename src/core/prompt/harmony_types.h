// A JSON Schema as the TypeScript type that harmony shows to the model.
//
// Errors: kInvalidArgument for what is no JSON. What the notation has no word for is "any".
// Concurrency: pure. Source: the public harmony renderer.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock::prompt {

// One function of the namespace: its description as comments, "type NAME = (_: {...}) => any;" and
// an empty line. `function_json` is {"name", "description", "parameters"}.
Result<std::string> typescript_function(std::string_view function_json);

}  // namespace penstock::prompt
