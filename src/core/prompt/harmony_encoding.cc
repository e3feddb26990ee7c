#include "core/prompt/harmony_encoding.h"

#include <fmt/format.h>
#include <algorithm>

#include "core/prompt/conversation_checks.h"
#include "core/prompt/harmony_parser.h"
#include "core/prompt/harmony_tokens.h"
#include "core/prompt/harmony_types.h"
#include "core/prompt/span_writer.h"

namespace penstock::prompt {
namespace {

using namespace harmony;  // NOLINT: seven tokens

// Wire text the models were trained on.
constexpr std::string_view kIdentity =
    "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n\n"
    "Reasoning: ";
constexpr std::string_view kChannels =
    "\n\n# Valid channels: analysis, commentary, final. Channel must be included for every "
    "message.";
constexpr std::string_view kToolChannel =
    "\nCalls to these tools must go to the commentary channel: 'functions'.";

bool is_instruction(Role role) {
  return role == Role::kSystem || role == Role::kDeveloper;
}

class Harmony : public ChatEncoding {
 public:
  std::string_view name() const override { return "gpt_oss"; }
  bool thinks(const Conversation& conversation) const override {
    return !conversation.continue_last_assistant || conversation.messages.empty() ||
           conversation.messages.back().text.empty();
  }
  // Reasoning ends in more than one token.
  std::string_view reasoning_end() const override { return {}; }
  bool reads_special_tokens() const override { return true; }
  Result<std::vector<PromptSpan>> render(const Conversation& conversation) const override;

  std::unique_ptr<OutputParser> make_parser(const Conversation& conversation,
                                            std::vector<std::string> stop) const override {
    std::vector<std::string> names;
    for (const ToolDefinition& tool : conversation.tools)
      names.push_back(tool.name);
    auto start = HarmonyParser::Start::kHeader;
    if (conversation.continue_last_assistant && !conversation.messages.empty()) {
      const Message& last = conversation.messages.back();
      if (!last.text.empty()) {
        start = HarmonyParser::Start::kContent;
      } else if (!last.reasoning.empty()) {
        start = HarmonyParser::Start::kReasoning;
      }
    }
    return std::make_unique<HarmonyParser>(start, std::move(names), std::move(stop));
  }

 private:
  static void open(std::string_view author, std::string_view channel, SpanWriter& out) {
    out.special(kStart);
    out.plain(author);
    if (!channel.empty()) {
      out.special(kChannel);
      out.plain(channel);
    }
  }
  static void whole(std::string_view author, std::string_view channel, std::string_view text,
                    SpanWriter& out) {
    open(author, channel, out);
    out.special(kMessage);
    out.plain(text);
    out.special(kEnd);
  }
  static Status write_assistant(const Conversation& conversation, std::size_t index,
                                bool keeps_reasoning, SpanWriter& out);
};

Result<std::string> instructions(const Conversation& conversation, std::size_t& next) {
  std::string out;
  for (; next < conversation.messages.size() && is_instruction(conversation.messages[next].role);
       ++next) {
    out += out.empty() ? "# Instructions\n\n" : "\n\n";
    out += conversation.messages[next].text;
  }
  if (conversation.tools.empty()) return out;
  out += out.empty() ? "" : "\n\n";
  out += "# Tools\n\n## functions\n\nnamespace functions {\n\n";
  for (std::size_t i = 0; i < conversation.tools.size(); ++i) {
    auto type = typescript_function(conversation.tools[i].schema);
    if (!type) {
      return fail(ErrorCode::kInvalidArgument, type.error().message,
                  fmt::format("tools[{}].function", i));
    }
    out += *type;
  }
  return out + "} // namespace functions";
}

Result<std::vector<PromptSpan>> Harmony::render(const Conversation& conversation) const {
  TRY_STATUS(check_order(conversation));
  const auto& messages = conversation.messages;
  // An answer that was given ends the reasoning before it.
  std::size_t answered = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const bool open = conversation.continue_last_assistant && i + 1 == messages.size();
    if (messages[i].role == Role::kAssistant && messages[i].tool_calls.empty() && !open) {
      answered = i + 1;
    }
  }
  SpanWriter out;
  const bool brief = conversation.thinking == Thinking::kDisabled;
  whole("system", "",
        fmt::format("{}{}{}{}", kIdentity, brief ? "low" : "medium", kChannels,
                    conversation.tools.empty() ? "" : kToolChannel),
        out);
  std::size_t next = 0;
  TRY(const std::string developer, instructions(conversation, next));
  if (!developer.empty()) whole("developer", "", developer, out);
  const Message* caller = nullptr;
  for (; next < messages.size(); ++next) {
    const Message& message = messages[next];
    if (is_instruction(message.role)) {
      whole("developer", "", "# Instructions\n\n" + message.text, out);
    } else if (message.role == Role::kUser) {
      whole("user", "", message.text, out);
    } else if (message.role == Role::kAssistant) {
      TRY_STATUS(write_assistant(conversation, next, next >= answered, out));
      if (!message.tool_calls.empty()) caller = &message;
    } else {
      const ToolCall* call = nullptr;
      if (caller != nullptr) {
        const auto found =
            std::ranges::find(caller->tool_calls, message.tool_call_id, &ToolCall::id);
        if (found != caller->tool_calls.end()) call = &*found;
      }
      if (call == nullptr) {
        return fail(
            ErrorCode::kInvalidArgument,
            fmt::format("tool_call_id '{}' answers no call of the assistant message before it",
                        message.tool_call_id),
            fmt::format("messages[{}].tool_call_id", next));
      }
      whole("functions." + call->name + " to=assistant", "commentary", message.text, out);
    }
  }
  if (!conversation.continue_last_assistant) open("assistant", "", out);
  return out.take();
}

Status Harmony::write_assistant(const Conversation& conversation, std::size_t index,
                                bool keeps_reasoning, SpanWriter& out) {
  const Message& message = conversation.messages[index];
  const bool last =
      conversation.continue_last_assistant && index + 1 == conversation.messages.size();
  const auto part = [&](std::string_view channel, std::string_view text, bool unfinished) {
    open("assistant", channel, out);
    out.special(kMessage);
    out.plain(text);
    if (!unfinished) out.special(kEnd);
  };
  if (keeps_reasoning && !message.reasoning.empty()) {
    part("analysis", message.reasoning, last && message.text.empty());
    if (last && message.text.empty()) return {};
  }
  if (last && message.text.empty()) {
    open("assistant", "", out);
    return {};
  }
  const bool calls = !message.tool_calls.empty();
  if (!calls || !message.text.empty()) {
    part(calls ? "commentary" : "final", message.text, last);
  }
  for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
    const ToolCall& call = message.tool_calls[i];
    TRY_STATUS(call_arguments(message, index, i));
    open("assistant to=functions." + call.name, "commentary", out);
    out.plain(" ");
    out.special(kConstrain);
    out.plain("json");
    out.special(kMessage);
    // As the model wrote them, so that its own tokens are found again.
    out.plain(call.arguments);
    out.special(kCall);
  }
  return {};
}

}  // namespace

bool is_harmony(const HasToken& has_token) {
  return std::ranges::all_of(
      std::initializer_list<std::string_view>{kStart, kEnd, kMessage, kChannel, kConstrain, kReturn,
                                              kCall},
      has_token);
}
std::unique_ptr<ChatEncoding> make_harmony() {
  return std::make_unique<Harmony>();
}

}  // namespace penstock::prompt
