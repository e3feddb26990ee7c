#include "core/prompt/dsml_writer.h"

#include <fmt/format.h>
#include <algorithm>

#include "core/prompt/deepseek_tokens.h"
#include "core/prompt/json_fields.h"
#include "core/prompt/json_spacing.h"

namespace penstock::prompt {

void write_dsml(std::string_view text, const DsmlSpelling& spelling, SpanWriter& out) {
  constexpr std::string_view kBlock = "tool_calls>";
  std::string spelled;
  while (!text.empty()) {
    const std::size_t at = std::min(text.find(kDsml), text.size());
    const std::size_t after = std::min(at + kDsml.size(), text.size());
    spelled += text.substr(0, after);
    text.remove_prefix(after);
    if (at == after) break;
    spelled += spelling.prefix;
    if (!text.starts_with(kBlock)) continue;
    spelled.append(spelling.block).append(">");
    text.remove_prefix(kBlock.size());
  }
  out.layout(spelled, {kDsml, kThinkStart, kThinkEnd});
}

Status write_dsml_calls(const Message& message, std::size_t index, const DsmlSpelling& spelling,
                        SpanWriter& out) {
  if (message.tool_calls.empty()) return {};
  const auto markup = [&](std::string_view text) { write_dsml(text, spelling, out); };
  markup("\n\n<｜DSML｜tool_calls>\n");
  for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
    const ToolCall& call = message.tool_calls[i];
    markup("<｜DSML｜invoke name=\"");
    out.plain(call.name);
    out.plain("\">\n");
    auto fields = json_fields(call.arguments);
    if (!fields) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("the arguments of a tool call must be a JSON object: {}",
                              fields.error().message),
                  fmt::format("messages[{}].tool_calls[{}].function.arguments", index, i));
    }
    for (std::size_t f = 0; f < fields->size(); ++f) {
      const JsonField& field = (*fields)[f];
      if (f > 0) out.plain("\n");
      markup("<｜DSML｜parameter name=\"");
      out.plain(field.name);
      out.plain(field.is_string ? "\" string=\"true\">" : "\" string=\"false\">");
      out.plain(field.value);
      markup("</｜DSML｜parameter>");
    }
    markup("\n</｜DSML｜invoke>\n");
  }
  markup("</｜DSML｜tool_calls>");
  return {};
}

Status write_tool_schemas(const Conversation& conversation, SpanWriter& out) {
  for (std::size_t i = 0; i < conversation.tools.size(); ++i) {
    auto schema = python_style(conversation.tools[i].schema);
    if (!schema) {
      return fail(ErrorCode::kInvalidArgument, schema.error().message,
                  fmt::format("tools[{}].function", i));
    }
    if (i > 0) out.plain("\n");
    out.plain(*schema);
  }
  return {};
}

Result<std::string> dsml_answer_grammar(const Conversation& conversation, const AnswerRules& rules,
                                        const TokenIdOf& token_id, const DsmlSpelling& spelling,
                                        bool starts_in_reasoning) {
  TRY(const std::string calls, dsml_calls(conversation, rules, token_id, spelling));
  const std::string mark = "<" + std::string(kDsml);
  std::string root = "root ::= ";
  if (starts_in_reasoning)
    root += grammar_without({kThinkEnd, mark}) + " " + grammar_token(kThinkEnd, token_id) + " ";
  const std::string_view block = R"("\n\n" block)";
  if (rules.must_call) {
    root += block;
  } else if (rules.json.empty()) {
    root += grammar_without({mark}) + " block?";
  } else {
    root += fmt::format("(%json {} | {})", rules.json, block);
  }
  return root + "\n" + calls;
}

}  // namespace penstock::prompt
