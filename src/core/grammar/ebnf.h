// EBNF grammars, written as llama.cpp's GBNF is, and two additions.
//
//   root  ::= "yes" | "no" ws number{1,3}     # comments; newlines mean nothing
//   ws    ::= [ \t\n]*                        # classes as in regular expressions
//   other ::= (root ",")+ . /[a-z]+x?/ %json {"type": "integer"} <[128799]>
//   more  ::= %without ("</a" "</b")  %json "/$defs/x" {"$defs": {"x": true}}
//
// "." is any character but a line end; /.../ a regular expression; %json an instance of a JSON
// Schema, or of the one at that pointer in it; %without any text in which none of these occurs;
// <[id]> the special token of that id, which no text spells. The text is what "root" reads.
//
// Errors: kInvalidArgument with the line. Concurrency: pure. Source: the GBNF guide of llama.cpp.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "core/grammar/grammar.h"
#include "core/grammar/limits.h"

namespace penstock::grammar {

Result<std::shared_ptr<const Grammar>> ebnf_grammar(std::string_view text,
                                                    const GrammarLimits& limits = {});

}  // namespace penstock::grammar
