// Tool calls as grammars: pieces of EBNF (core/grammar/ebnf.h) that the families share, and
// DeepSeek's DSML block.
//
// DSML: parameters come in declared order, optional ones may be left out, undeclared ones don't
// come. A string without further conditions is raw text up to the closing tag, so is a value of an
// enum of strings; every other value is JSON by the property's schema, strings with a pattern, a
// format or a length too.
//
// Errors: kInvalidArgument or kUnsupported; the message begins with the tool's name. Concurrency:
// pure. Source: docs/design/0011-structured-output.md.
#pragma once

#include <boost/json.hpp>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/result.h"
#include "core/prompt/chat_encoding.h"

namespace penstock::prompt {

// `text` as a literal.
std::string grammar_literal(std::string_view text);
// The added token of that content by its id; a literal where the vocabulary has none.
std::string grammar_token(std::string_view content, const TokenIdOf& token_id);
// Any text in which none of `words` occurs.
std::string grammar_without(std::initializer_list<std::string_view> words);

// Calls written as JSON objects: alternatives of {"name": "f", "<key>": {...}} for what `rules`
// allow.
Result<std::string> json_calls(const Conversation& conversation, const AnswerRules& rules,
                               std::string_view key);

struct DsmlSpelling {
  std::string_view block;   // the name of the tag around all calls
  std::string_view prefix;  // between the mark and the name of a tag
};
// Rules for the block: "block" and those it uses.
Result<std::string> dsml_calls(const Conversation& conversation, const AnswerRules& rules,
                               const TokenIdOf& token_id, const DsmlSpelling& spelling);

}  // namespace penstock::prompt
