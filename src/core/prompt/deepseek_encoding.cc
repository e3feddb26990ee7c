#include "core/prompt/deepseek_encoding.h"

#include <fmt/format.h>
#include <algorithm>
#include <map>

#include "core/prompt/conversation_checks.h"
#include "core/prompt/deepseek_parser.h"
#include "core/prompt/deepseek_tokens.h"
#include "core/prompt/dsml_encoding.h"
#include "core/prompt/dsml_writer.h"
#include "core/prompt/span_writer.h"

namespace penstock::prompt {
namespace {

// The wire text of the V4 tools section: what stands before and after the schemas. The models were
// trained on these very bytes, so they are a format, not prose of ours.
constexpr std::string_view kToolsHead =
    R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
constexpr std::string_view kToolsTail =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";

// V4.1 states the effort of thinking at the start of the prompt; 50 is the reference's default.
constexpr std::string_view kEffort =
    "Reasoning Effort: 50 (range 1-100, the higher the value, the more thorough the reasoning)"
    "\n\n";

bool user_like(Role role) {
  return role == Role::kUser || role == Role::kDeveloper;
}
bool user_turn(Role role) {
  return user_like(role) || role == Role::kTool;
}

// ---------------------------------------------------------------------------------------------- V3

class DeepSeekV3 : public ChatEncoding {
 public:
  std::string_view name() const override { return "deepseek_v3"; }
  bool thinks(const Conversation&) const override { return false; }
  std::string_view text_begin() const override { return kBos; }

  Result<std::vector<PromptSpan>> render(const Conversation& conversation) const override {
    TRY_STATUS(check_order(conversation));
    if (!conversation.tools.empty()) {
      return fail(ErrorCode::kUnsupported,
                  "this model's chat encoding (deepseek_v3) has no tools; use a model with the "
                  "deepseek_v4 encoding",
                  "tools");
    }
    SpanWriter out;
    out.special(kBos);
    bool first_system = true;  // all of them stand at the start, a blank line between
    for (const Message& message : conversation.messages) {
      if (message.role != Role::kSystem && message.role != Role::kDeveloper) continue;
      if (!first_system) out.plain("\n\n");
      out.plain(message.text);
      first_system = false;
    }
    for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
      const Message& message = conversation.messages[i];
      if (message.role == Role::kUser) {
        out.special(kUser);
        out.plain(message.text);
      } else if (message.role == Role::kAssistant) {
        const bool open =
            conversation.continue_last_assistant && i + 1 == conversation.messages.size();
        out.special(kAssistant);
        out.plain(message.text);
        if (!open) out.special(kEos);
      } else if (message.role == Role::kTool) {
        return fail(ErrorCode::kUnsupported,
                    "this model's chat encoding (deepseek_v3) has no tool results",
                    fmt::format("messages[{}].role", i));
      }
    }
    if (!conversation.continue_last_assistant) out.special(kAssistant);
    return out.take();
  }

  std::unique_ptr<OutputParser> make_parser(const Conversation&,
                                            std::vector<std::string> stop) const override {
    return std::make_unique<DeepSeekParser>(false, ToolMarkup::kAsText, std::move(stop));
  }
};

// ---------------------------------------------------------------------------------------------- V4

// V4.1 marks system messages, says how hard to think, and writes a space before the names of tags.
enum class Version : std::uint8_t { kV4, kV41 };

class DeepSeekV4 : public DsmlEncoding {
 public:
  explicit DeepSeekV4(Version version) : version_(version) {}

  std::string_view name() const override {
    return version_ == Version::kV41 ? "deepseek_v4_1" : "deepseek_v4";
  }

  Result<std::vector<PromptSpan>> render(const Conversation& conversation) const override;

 private:
  DsmlSpelling spelling() const override {
    return version_ == Version::kV41 ? DsmlSpelling{.block = "calls", .prefix = " "}
                                     : DsmlSpelling{.block = "tool_calls", .prefix = ""};
  }
  Status write_tools(const Conversation& conversation, SpanWriter& out) const;
  static Status write_user_run(const std::vector<Message>& messages, std::size_t begin,
                               std::size_t end, const Message* caller, SpanWriter& out);

  Version version_;
};

Result<std::vector<PromptSpan>> DeepSeekV4::render(const Conversation& conversation) const {
  TRY_STATUS(check_order(conversation));
  const auto& messages = conversation.messages;
  const bool thinking = thinks(conversation);
  const bool keep_reasoning = !conversation.tools.empty();
  const bool v41 = version_ == Version::kV41;
  std::size_t last_user = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const bool asks = v41 && i > 0 && messages[i].role == Role::kSystem;
    if (user_turn(messages[i].role) || asks) last_user = i;
  }
  const auto header = [&](SpanWriter& out, std::size_t user_index) {
    out.special(kAssistant);
    out.special(thinking && (keep_reasoning || user_index >= last_user) ? kThinkStart : kThinkEnd);
  };

  SpanWriter out;
  out.special(kBos);
  const bool system_first = messages[0].role == Role::kSystem;
  if (v41 && (thinking || system_first || keep_reasoning)) out.special(kSystem);
  if (v41 && thinking) out.plain(kEffort);
  bool tools_written = conversation.tools.empty();
  const Message* caller = nullptr;  // the last assistant message, whose calls results answer
  bool header_open = false;         // "<｜Assistant｜>..." has been written for the next answer
  for (std::size_t i = 0; i < messages.size();) {
    const Message& message = messages[i];
    if (!tools_written && message.role != Role::kSystem) {
      out.plain("\n\n");
      TRY_STATUS(write_tools(conversation, out));
      tools_written = true;
    }
    if (user_turn(message.role)) {
      std::size_t end = i;
      while (end < messages.size() && user_turn(messages[end].role))
        ++end;
      TRY_STATUS(write_user_run(messages, i, end, caller, out));
      const bool more_context = end < messages.size() && messages[end].role == Role::kSystem;
      if (!more_context) header(out, end - 1);
      header_open = !more_context;
      i = end;
      continue;
    }
    if (message.role == Role::kSystem) {
      if (v41 && i > 0) out.special(kSystem);
      out.plain(message.text);
      if (!tools_written) {
        const bool more = !v41 && i + 1 < messages.size() && messages[i + 1].role == Role::kSystem;
        if (!more) {
          out.plain("\n\n");
          TRY_STATUS(write_tools(conversation, out));
          tools_written = true;
        }
      }
      ++i;
      continue;
    }
    const bool open = conversation.continue_last_assistant && i + 1 == messages.size();
    if (!header_open) header(out, i);
    header_open = false;
    if (thinking && (keep_reasoning || i > last_user)) {
      out.plain(message.reasoning);
      if (!open || !message.text.empty()) out.special(kThinkEnd);
    }
    out.plain(message.text);
    TRY_STATUS(write_dsml_calls(message, i, spelling(), out));
    if (!open) out.special(kEos);
    caller = &message;
    ++i;
  }
  // The last message was not a user's (system, or a finished answer): start an answer anyway.
  if (!header_open && !conversation.continue_last_assistant) header(out, messages.size());
  return out.take();
}

Status DeepSeekV4::write_tools(const Conversation& conversation, SpanWriter& out) const {
  // The section names three tokens; each becomes its added token, as in the models' reference.
  write_dsml(kToolsHead, spelling(), out);
  TRY_STATUS(write_tool_schemas(conversation, out));
  out.plain(kToolsTail);
  return {};
}

// Consecutive user, developer and tool messages are one user turn; tool results come first in the
// order of the calls they answer, blocks are joined by a blank line.
Status DeepSeekV4::write_user_run(const std::vector<Message>& messages, std::size_t begin,
                                  std::size_t end, const Message* caller, SpanWriter& out) {
  const auto call_index = [caller](const Message& m) -> std::size_t {
    if (caller == nullptr) return kNoMarker;
    const auto& calls = caller->tool_calls;
    const auto it = std::ranges::find(calls, m.tool_call_id, &ToolCall::id);
    return it == calls.end() ? kNoMarker : static_cast<std::size_t>(it - calls.begin());
  };
  std::vector<std::pair<std::size_t, std::size_t>> results;  // call index, message index
  for (std::size_t i = begin; i < end; ++i) {
    if (messages[i].role != Role::kTool) continue;
    const std::size_t call = call_index(messages[i]);
    if (call == kNoMarker) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("tool_call_id '{}' answers no call of the assistant message before it",
                      messages[i].tool_call_id),
          fmt::format("messages[{}].tool_call_id", i));
    }
    results.emplace_back(call, i);
  }
  std::ranges::sort(results);

  out.special(kUser);
  std::size_t next_result = 0;
  for (std::size_t i = begin; i < end; ++i) {
    if (i > begin) out.plain("\n\n");
    if (messages[i].role == Role::kTool) {
      out.plain("<tool_result>");
      out.plain(messages[results[next_result++].second].text);
      out.plain("</tool_result>");
    } else {
      out.plain(messages[i].text);
    }
  }
  return {};
}

}  // namespace

std::unique_ptr<ChatEncoding> make_deepseek_v3() {
  return std::make_unique<DeepSeekV3>();
}
std::unique_ptr<ChatEncoding> make_deepseek_v4() {
  return std::make_unique<DeepSeekV4>(Version::kV4);
}
std::unique_ptr<ChatEncoding> make_deepseek_v4_1() {
  return std::make_unique<DeepSeekV4>(Version::kV41);
}

}  // namespace penstock::prompt
