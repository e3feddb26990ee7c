// DeepSeek V3.2: see deepseek_encoding.h.
#include <fmt/format.h>
#include <algorithm>
#include <utility>

#include "core/prompt/conversation_checks.h"
#include "core/prompt/deepseek_encoding.h"
#include "core/prompt/deepseek_tokens.h"
#include "core/prompt/dsml_encoding.h"
#include "core/prompt/dsml_writer.h"

namespace penstock::prompt {
namespace {

// The wire text of the tools section around the schemas, which the models were trained on; the
// calls' block is spelled by write_dsml().
constexpr std::string_view kToolsHead =
    R"(## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜tool_calls>" block like the following as part of your reply to the user:
<｜DSML｜tool_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:
<｜DSML｜tool_calls>
...
</｜DSML｜tool_calls>
<function_results>
...
</function_results>
<think>...thinking about results</think>
Here are the functions available in JSONSchema format:
<functions>
)";
constexpr std::string_view kToolsTail = "\n</functions>\n";
constexpr DsmlSpelling kSpelling{.block = "function_calls", .prefix = ""};

class DeepSeekV32 final : public DsmlEncoding {
 public:
  std::string_view name() const override { return "deepseek_v3_2"; }
  Result<std::vector<PromptSpan>> render(const Conversation& conversation) const override;

 private:
  DsmlSpelling spelling() const override { return kSpelling; }
};

// The results of messages [begin, end), in the order of the calls they answer.
Status write_results(const std::vector<Message>& messages, std::size_t begin, std::size_t end,
                     SpanWriter& out) {
  std::vector<std::pair<std::ptrdiff_t, std::size_t>> order;
  for (std::size_t i = begin; i < end; ++i) {
    const auto& calls = messages[begin == 0 ? 0 : begin - 1].tool_calls;
    const auto call = std::ranges::find(calls, messages[i].tool_call_id, &ToolCall::id);
    if (call == calls.end()) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("tool_call_id '{}' answers no call of the assistant message before it",
                      messages[i].tool_call_id),
          fmt::format("messages[{}].tool_call_id", i));
    }
    order.emplace_back(call - calls.begin(), i);
  }
  std::ranges::sort(order);
  out.plain("\n\n<function_results>");
  for (const auto& [call, i] : order) {
    out.plain("\n<result>");
    out.plain(messages[i].text);
    out.plain("</result>");
  }
  out.plain("\n</function_results>\n\n");
  return {};
}

Result<std::vector<PromptSpan>> DeepSeekV32::render(const Conversation& conversation) const {
  TRY_STATUS(check_order(conversation));
  const auto& messages = conversation.messages;
  const bool thinking = thinks(conversation);
  const auto asks = [](const Message& m) {
    return m.role == Role::kUser || m.role == Role::kDeveloper;
  };
  // What thinks is the answer to the last question, over all its calls.
  std::size_t last_question = 0;
  for (std::size_t i = 0; i < messages.size(); ++i)
    if (asks(messages[i])) last_question = i;
  const auto open_answer = [&](std::size_t after, SpanWriter& out) {
    out.special(thinking && after >= last_question ? kThinkStart : kThinkEnd);
  };

  SpanWriter out;
  out.special(kBos);
  bool tools_written = conversation.tools.empty();
  bool open = false;  // an answer has been opened
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (message.role == Role::kSystem) out.plain(message.text);
    if (!std::exchange(tools_written, true)) {
      out.plain("\n\n");
      write_dsml(kToolsHead, kSpelling, out);
      TRY_STATUS(write_tool_schemas(conversation, out));
      out.plain(kToolsTail);
    }
    if (message.role == Role::kSystem) continue;
    if (asks(message)) {
      out.special(kUser);
      if (message.role == Role::kDeveloper) out.plain("\n\n# The user's message is: ");
      out.plain(message.text);
      out.special(kAssistant);
      open_answer(i, out);
      open = true;
    } else if (message.role == Role::kTool) {
      std::size_t end = i;
      while (end < messages.size() && messages[end].role == Role::kTool)
        ++end;
      TRY_STATUS(write_results(messages, i, end, out));
      i = end - 1;
      open_answer(i, out);
      open = true;
    } else {
      const bool unfinished = conversation.continue_last_assistant && i + 1 == messages.size();
      if (!std::exchange(open, false)) {
        out.special(kAssistant);
        open_answer(i, out);
      }
      if (thinking && i > last_question) {
        out.plain(message.reasoning);
        if (!unfinished || !message.text.empty()) out.special(kThinkEnd);
      }
      out.plain(message.text);
      TRY_STATUS(write_dsml_calls(message, i, kSpelling, out));
      if (!unfinished) out.special(kEos);
    }
  }
  // The last message was the system's, or a finished answer: begin one anyway.
  if (!open && !conversation.continue_last_assistant) {
    out.special(kAssistant);
    open_answer(messages.size(), out);
  }
  return out.take();
}

}  // namespace

std::unique_ptr<ChatEncoding> make_deepseek_v3_2() {
  return std::make_unique<DeepSeekV32>();
}

}  // namespace penstock::prompt
