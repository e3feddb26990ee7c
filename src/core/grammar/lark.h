// Lark-like grammars: rules, terminals, and what is most used of the rest.
//
//   start: greeting ("," name)* "."          // comments
//   ?greeting.2: "hello"i | /h[ae]y/ -> short
//   name: LETTER~1..20 [digits]
//   LETTER: "a".."z"
//   digits: %json {"type": "integer"}
//   %import common.INT
//   %ignore /[ \t]+/
//
// The text is what "start" reads. What %ignore names may stand once behind each terminal of a rule.
// Refused with the line: regular-expression flags but "i" on plain text, templates, %override,
// %extend, %declare, other imports than kImports in lark.cc, and rules that begin with themselves.
//
// Errors: kInvalidArgument with the line. Concurrency: pure. Source: Lark's grammar reference.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "core/grammar/grammar.h"
#include "core/grammar/limits.h"

namespace penstock::grammar {

Result<std::shared_ptr<const Grammar>> lark_grammar(std::string_view text,
                                                    const GrammarLimits& limits = {});

}  // namespace penstock::grammar
