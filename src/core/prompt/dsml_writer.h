// What the DeepSeek encodings with tools have in common: DSML markup, calls and schemas in a
// prompt, and the grammar of an answer.
//
// Errors: kInvalidArgument naming the field of the request. Concurrency: pure. Source:
// docs/protocol/chat-encodings.md.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/prompt/call_grammar.h"
#include "core/prompt/span_writer.h"
#include "domain/conversation.h"

namespace penstock::prompt {

// Template text that spells its tags as V4 does ("<｜DSML｜tool_calls>", "<｜DSML｜invoke"), in the
// given spelling.
void write_dsml(std::string_view text, const DsmlSpelling& spelling, SpanWriter& out);
// "\n\n<｜DSML｜tool_calls>" ... one invoke per call, one parameter per argument; nothing without
// calls. `index` is the message's.
Status write_dsml_calls(const Message& message, std::size_t index, const DsmlSpelling& spelling,
                        SpanWriter& out);
// The function objects of the tools, one a line.
Status write_tool_schemas(const Conversation& conversation, SpanWriter& out);
// As ChatEncoding::answer_grammar().
Result<std::string> dsml_answer_grammar(const Conversation& conversation, const AnswerRules& rules,
                                        const TokenIdOf& token_id, const DsmlSpelling& spelling,
                                        bool starts_in_reasoning);

}  // namespace penstock::prompt
