// python_style(): rewrites JSON text the way Python's json.dumps(ensure_ascii=False) prints it.
//
// Separators become ", " and ": ", insignificant space goes, escapes that are not needed become the
// characters themselves; key order and number text stay. Prompts must have these very bytes, or
// cache keys would differ from those of other services that use the models' reference encodings.
// With `indent` above 0, each element stands on a line of its own, as indent=... prints it.
//
// Errors: kInvalidArgument when the text is not one JSON value (brackets and strings are checked,
// not the grammar of numbers). Concurrency: pure.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock::prompt {

Result<std::string> python_style(std::string_view json, int indent = 0);

}  // namespace penstock::prompt
