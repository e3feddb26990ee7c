#include "core/prompt/conversation_checks.h"

#include <fmt/format.h>

#include "core/prompt/json_fields.h"
#include "core/prompt/json_spacing.h"

namespace penstock::prompt {

Status check_order(const Conversation& conversation) {
  const auto& messages = conversation.messages;
  if (messages.empty()) {
    return fail(ErrorCode::kInvalidArgument, "messages is empty; send at least one message",
                "messages");
  }
  if (conversation.continue_last_assistant && messages.back().role != Role::kAssistant) {
    return fail(ErrorCode::kInvalidArgument,
                "prefix completion needs an assistant message at the end", "messages");
  }
  return {};
}

Result<std::string> tool_json(const Conversation& conversation, std::size_t index, int indent) {
  const std::string whole =
      R"({"type":"function","function":)" + conversation.tools[index].schema + '}';
  auto text = python_style(whole, indent);
  if (!text) {
    return fail(ErrorCode::kInvalidArgument, text.error().message,
                fmt::format("tools[{}].function", index));
  }
  return text;
}

Result<std::string> call_arguments(const Message& message, std::size_t message_index,
                                   std::size_t call_index) {
  const std::string& json = message.tool_calls[call_index].arguments;
  if (const auto fields = json_fields(json); !fields) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the arguments of a tool call must be a JSON object: {}",
                    fields.error().message),
        fmt::format("messages[{}].tool_calls[{}].function.arguments", message_index, call_index));
  }
  return python_style(json);
}

}  // namespace penstock::prompt
