// parse(): a template's source as statements.
//
// Errors: Failure with its line, for what isn't Jinja, what this subset leaves out (include,
// extends, import, block, call, autoescape, recursive loops) and unknown filters and tests, so that
// a template is refused when it is loaded, not when it is used.
// Concurrency: pure. Source: the documentation of Jinja 3.1.
#pragma once

#include <string_view>

#include "core/prompt/jinja/ast.h"

namespace penstock::jinja {

Fallible<Body> parse(std::string_view source);

}  // namespace penstock::jinja
