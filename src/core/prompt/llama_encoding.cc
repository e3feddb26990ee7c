#include "core/prompt/llama_encoding.h"

#include <fmt/format.h>

#include "core/prompt/call_grammar.h"
#include "core/prompt/call_parser.h"
#include "core/prompt/conversation_checks.h"
#include "core/prompt/json_cursor.h"
#include "core/prompt/json_spacing.h"
#include "core/prompt/span_writer.h"

namespace penstock::prompt {
namespace {

constexpr std::string_view kBegin = "<|begin_of_text|>";
constexpr std::string_view kHeader = "<|start_header_id|>";
constexpr std::string_view kHeaderEnd = "<|end_header_id|>";
constexpr std::string_view kTurnEnd = "<|eot_id|>";
constexpr std::string_view kPython = "<|python_tag|>";
constexpr std::string_view kMessageEnd = "<|eom_id|>";

// Wire text the models were trained on; the dates are the template's, so that prompts of one
// conversation are the same every day.
constexpr std::string_view kEnvironment = "Environment: ipython\n";
constexpr std::string_view kDates =
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
constexpr std::string_view kToolsHead =
    "Given the following functions, please respond with a JSON for a function call with its proper "
    "arguments that best answers the given prompt.\n\nRespond in the format {\"name\": function "
    "name, \"parameters\": dictionary of argument name and its value}.Do not use variables.\n\n";

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\v\f";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

bool is_system(Role role) {
  return role == Role::kSystem || role == Role::kDeveloper;
}

enum class Version : std::uint8_t { kV3, kV31 };

class Llama3 : public ChatEncoding {
 public:
  explicit Llama3(Version version) : version_(version) {}

  std::string_view name() const override {
    return version_ == Version::kV31 ? "llama3_1" : "llama3";
  }
  bool thinks(const Conversation&) const override { return false; }
  std::string_view text_begin() const override { return kBegin; }
  Result<std::vector<PromptSpan>> render(const Conversation& conversation) const override;

  std::unique_ptr<OutputParser> make_parser(const Conversation& conversation,
                                            std::vector<std::string> stop) const override {
    CallMarkup markup;
    if (!conversation.tools.empty()) {
      markup.call_open = kPython;
      markup.bare = true;
      for (const ToolDefinition& tool : conversation.tools)
        markup.names.push_back(tool.name);
    }
    const auto start = conversation.continue_last_assistant ? CallParser::Start::kContent
                                                            : CallParser::Start::kAnswer;
    return std::make_unique<CallParser>(std::move(markup), start, std::move(stop));
  }

  Result<std::string> answer_grammar(const Conversation& conversation, const AnswerRules& rules,
                                     const TokenIdOf& token_id) const override;

 private:
  static void header(std::string_view role, SpanWriter& out) {
    out.special(kHeader);
    out.plain(role);
    out.special(kHeaderEnd);
    out.plain("\n\n");
  }
  Status check(const Conversation& conversation) const;
  static Status write_tools(const Conversation& conversation, SpanWriter& out);
  static Status write_message(const Conversation& conversation, std::size_t index, SpanWriter& out);

  Version version_;
};

Status Llama3::check(const Conversation& conversation) const {
  TRY_STATUS(check_order(conversation));
  const auto& messages = conversation.messages;
  if (version_ == Version::kV3) {
    if (!conversation.tools.empty()) {
      return fail(ErrorCode::kUnsupported,
                  "this model's chat encoding (llama3) has no tools; use a model of Llama 3.1 or "
                  "later",
                  "tools");
    }
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role != Role::kTool && messages[i].tool_calls.empty()) continue;
      return fail(ErrorCode::kUnsupported,
                  "this model's chat encoding (llama3) has no tool calls and no tool results",
                  fmt::format("messages[{}]", i));
    }
  }
  if (!conversation.tools.empty()) {
    const std::size_t first = is_system(messages[0].role) ? 1 : 0;
    if (first == messages.size() || messages[first].role != Role::kUser) {
      return fail(ErrorCode::kInvalidArgument,
                  "with tools the first message after the system's must be a user's: this model "
                  "reads the tools there",
                  "messages");
    }
  }
  return {};
}

Result<std::vector<PromptSpan>> Llama3::render(const Conversation& conversation) const {
  TRY_STATUS(check(conversation));
  const auto& messages = conversation.messages;
  SpanWriter out;
  out.special(kBegin);
  std::size_t next = 0;
  if (version_ == Version::kV31) {
    header("system", out);
    if (!conversation.tools.empty()) out.plain(kEnvironment);
    out.plain(kDates);
    if (is_system(messages[0].role)) out.plain(trimmed(messages[next++].text));
    out.special(kTurnEnd);
    if (!conversation.tools.empty()) {
      header("user", out);
      TRY_STATUS(write_tools(conversation, out));
      out.plain(trimmed(messages[next++].text));
      out.special(kTurnEnd);
    }
  }
  for (; next < messages.size(); ++next)
    TRY_STATUS(write_message(conversation, next, out));
  if (!conversation.continue_last_assistant) header("assistant", out);
  return out.take();
}

Status Llama3::write_tools(const Conversation& conversation, SpanWriter& out) {
  constexpr int kIndent = 4;
  out.plain(kToolsHead);
  for (std::size_t i = 0; i < conversation.tools.size(); ++i) {
    TRY(const std::string tool, tool_json(conversation, i, kIndent));
    out.plain(tool);
    out.plain("\n\n");
  }
  return {};
}

Status Llama3::write_message(const Conversation& conversation, std::size_t index, SpanWriter& out) {
  const Message& message = conversation.messages[index];
  const bool open =
      conversation.continue_last_assistant && index + 1 == conversation.messages.size();
  if (message.role == Role::kTool) {
    // The template prints a result as a JSON string.
    std::string quoted = "\"";
    append_json_escaped(message.text, quoted);
    TRY(const std::string text, python_style(quoted + '"'));
    header("ipython", out);
    out.plain(text);
  } else if (!message.tool_calls.empty()) {
    // An answer is text or calls to these models.
    header("assistant", out);
    for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
      TRY(const std::string arguments, call_arguments(message, index, i));
      if (i > 0) out.plain("; ");
      out.plain("{\"name\": \"");
      out.plain(message.tool_calls[i].name);
      out.plain("\", \"parameters\": ");
      out.plain(arguments);
      out.plain("}");
    }
  } else {
    constexpr std::string_view kRoles[] = {"system", "system", "user", "assistant"};
    header(kRoles[static_cast<std::size_t>(message.role)], out);
    out.plain(open ? std::string_view(message.text) : trimmed(message.text));
  }
  if (!open) out.special(kTurnEnd);
  return {};
}

// A call may begin the answer bare, unless the answer has begun already; text then doesn't begin
// with a brace or a bracket.
Result<std::string> Llama3::answer_grammar(const Conversation& conversation,
                                           const AnswerRules& rules,
                                           const TokenIdOf& token_id) const {
  if (version_ == Version::kV3) return ChatEncoding::answer_grammar(conversation, rules, token_id);
  TRY(const std::string call, json_calls(conversation, rules, "parameters"));
  const bool bare = !conversation.continue_last_assistant;
  const std::string marked = grammar_token(kPython, token_id) + " calls";
  const std::string text = grammar_without({kPython});
  std::string root = bare ? "calls" : marked;
  if (!rules.must_call) {
    root = !bare
               ? fmt::format("{} ({})?", text, marked)
               : fmt::format(
                     "/[ \\t\\r\\n]*/ (calls | ({} | /[^{{\\[< \\t\\r\\n]|<[^|<{{\\[]/ {} ({})?)?)",
                     marked, text, marked);
  }
  return fmt::format("root ::= {}\ncalls ::= call{}\ncall ::= {}\n", root,
                     rules.several_calls ? " (\"; \" call)*" : "", call);
}

}  // namespace

bool is_llama3(const HasToken& has_token) {
  return has_token(kBegin) && has_token(kHeader) && has_token(kHeaderEnd) && has_token(kTurnEnd);
}
bool is_llama3_1(const HasToken& has_token) {
  return is_llama3(has_token) && has_token(kPython) && has_token(kMessageEnd);
}
std::unique_ptr<ChatEncoding> make_llama3() {
  return std::make_unique<Llama3>(Version::kV3);
}
std::unique_ptr<ChatEncoding> make_llama3_1() {
  return std::make_unique<Llama3>(Version::kV31);
}

}  // namespace penstock::prompt
