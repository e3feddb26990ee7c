#include "core/prompt/qwen_encoding.h"

#include <fmt/format.h>
#include <algorithm>

#include "core/prompt/call_grammar.h"
#include "core/prompt/call_parser.h"
#include "core/prompt/conversation_checks.h"
#include "core/prompt/span_writer.h"

namespace penstock::prompt {
namespace {

constexpr std::string_view kTurn = "<|im_start|>";
constexpr std::string_view kTurnEnd = "<|im_end|>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkClose = "</think>";
constexpr std::string_view kCall = "<tool_call>";
constexpr std::string_view kCallClose = "</tool_call>";
constexpr std::string_view kResponse = "<tool_response>";
constexpr std::string_view kResponseClose = "</tool_response>";

// The wire text around the tools: a format the models were trained on, not prose of ours.
constexpr std::string_view kToolsHead =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kToolsTail =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";

std::string_view without_newlines(std::string_view text) {
  const std::size_t begin = text.find_first_not_of('\n');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of('\n') + 1 - begin);
}

bool is_system(Role role) {
  return role == Role::kSystem || role == Role::kDeveloper;
}

class Qwen3 : public ChatEncoding {
 public:
  std::string_view name() const override { return "qwen3"; }

  bool thinks(const Conversation& conversation) const override {
    return conversation.thinking != Thinking::kDisabled;
  }

  Result<std::vector<PromptSpan>> render(const Conversation& conversation) const override;

  std::unique_ptr<OutputParser> make_parser(const Conversation& conversation,
                                            std::vector<std::string> stop) const override {
    CallMarkup markup;
    markup.think_open = kThink;
    markup.think_close = kThinkClose;
    if (!conversation.tools.empty()) {
      markup.call_open = kCall;
      markup.call_close = kCallClose;
    }
    return std::make_unique<CallParser>(std::move(markup), start(conversation), std::move(stop));
  }

  Result<std::string> answer_grammar(const Conversation& conversation, const AnswerRules& rules,
                                     const TokenIdOf& token_id) const override;

 private:
  // What the prompt ended in.
  CallParser::Start start(const Conversation& conversation) const {
    if (conversation.continue_last_assistant && !conversation.messages.empty()) {
      const Message& last = conversation.messages.back();
      if (!last.text.empty()) return CallParser::Start::kContent;
      if (!last.reasoning.empty()) return CallParser::Start::kReasoning;
    }
    return thinks(conversation) ? CallParser::Start::kAnswer : CallParser::Start::kContent;
  }
  static void open_turn(std::string_view role, SpanWriter& out) {
    out.special(kTurn);
    out.plain(role);
    out.plain("\n");
  }
  static void close_turn(SpanWriter& out) {
    out.special(kTurnEnd);
    out.plain("\n");
  }
  static Status write_system(const Conversation& conversation, SpanWriter& out);
  static Status write_assistant(const Conversation& conversation, std::size_t index,
                                bool after_last_user, SpanWriter& out);
};

Result<std::vector<PromptSpan>> Qwen3::render(const Conversation& conversation) const {
  TRY_STATUS(check_order(conversation));
  const auto& messages = conversation.messages;
  std::size_t last_user = messages.size();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == Role::kUser) last_user = i;
  }
  SpanWriter out;
  TRY_STATUS(write_system(conversation, out));
  for (std::size_t i = is_system(messages[0].role) ? 1 : 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    switch (message.role) {
      case Role::kSystem:
      case Role::kDeveloper:
      case Role::kUser:
        open_turn(message.role == Role::kUser ? "user" : "system", out);
        out.plain(message.text);
        close_turn(out);
        break;
      case Role::kAssistant:
        TRY_STATUS(write_assistant(conversation, i, i > last_user, out));
        break;
      case Role::kTool:
        // Neighbouring results share one user turn.
        if (i == 0 || messages[i - 1].role != Role::kTool) {
          out.special(kTurn);
          out.plain("user");
        }
        out.plain("\n");
        out.special(kResponse);
        out.plain("\n");
        out.plain(message.text);
        out.plain("\n");
        out.special(kResponseClose);
        if (i + 1 == messages.size() || messages[i + 1].role != Role::kTool) close_turn(out);
        break;
    }
  }
  if (conversation.continue_last_assistant) return out.take();
  open_turn("assistant", out);
  if (!thinks(conversation)) out.layout("<think>\n\n</think>\n\n", {kThink, kThinkClose});
  return out.take();
}

Status Qwen3::write_system(const Conversation& conversation, SpanWriter& out) {
  const Message& first = conversation.messages[0];
  const bool has_text = is_system(first.role);
  if (!has_text && conversation.tools.empty()) return {};
  open_turn("system", out);
  if (has_text) out.plain(first.text);
  if (!conversation.tools.empty()) {
    if (has_text) out.plain("\n\n");
    out.plain(kToolsHead);
    for (std::size_t i = 0; i < conversation.tools.size(); ++i) {
      TRY(const std::string tool, tool_json(conversation, i));
      out.plain("\n");
      out.plain(tool);
    }
    out.layout(kToolsTail, {kCall, kCallClose});
  }
  close_turn(out);
  return {};
}

Status Qwen3::write_assistant(const Conversation& conversation, std::size_t index,
                              bool after_last_user, SpanWriter& out) {
  const Message& message = conversation.messages[index];
  const bool open =
      conversation.continue_last_assistant && index + 1 == conversation.messages.size();
  open_turn("assistant", out);
  std::string_view text = message.text;
  if (after_last_user && !message.reasoning.empty()) {
    out.special(kThink);
    out.plain("\n");
    out.plain(without_newlines(message.reasoning));
    if (open && text.empty()) return {};
    out.plain("\n");
    out.special(kThinkClose);
    out.plain("\n\n");
    text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  }
  out.plain(text);
  for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
    TRY(const std::string arguments, call_arguments(message, index, i));
    if (i > 0 || !text.empty()) out.plain("\n");
    out.special(kCall);
    out.plain("\n{\"name\": \"");
    out.plain(message.tool_calls[i].name);
    out.plain("\", \"arguments\": ");
    out.plain(arguments);
    out.plain("}\n");
    out.special(kCallClose);
  }
  if (!open) close_turn(out);
  return {};
}

Result<std::string> Qwen3::answer_grammar(const Conversation& conversation,
                                          const AnswerRules& rules,
                                          const TokenIdOf& token_id) const {
  TRY(const std::string call, json_calls(conversation, rules, "arguments"));
  std::string reasoning = fmt::format("{} {} \"\\n\\n\" ", grammar_without({kThinkClose, kCall}),
                                      grammar_token(kThinkClose, token_id));
  switch (start(conversation)) {
    case CallParser::Start::kAnswer:
      reasoning = fmt::format("({} {})? ", grammar_token(kThink, token_id), reasoning);
      break;
    case CallParser::Start::kReasoning:
      break;
    case CallParser::Start::kContent:
      reasoning.clear();
      break;
  }
  const std::string answer = rules.must_call ? "calls" : grammar_without({kCall}) + " calls?";
  return fmt::format("root ::= {}{}\ncalls ::= call{}\ncall ::= {} \"\\n\" {} \"\\n\" {}\n",
                     reasoning, answer, rules.several_calls ? " (\"\\n\" call)*" : "",
                     grammar_token(kCall, token_id), call, grammar_token(kCallClose, token_id));
}

}  // namespace

bool is_qwen3(const HasToken& has_token) {
  return std::ranges::all_of(
      std::initializer_list<std::string_view>{kTurn, kTurnEnd, kThink, kThinkClose, kCall,
                                              kCallClose, kResponse, kResponseClose},
      has_token);
}
std::unique_ptr<ChatEncoding> make_qwen3() {
  return std::make_unique<Qwen3>();
}

}  // namespace penstock::prompt
