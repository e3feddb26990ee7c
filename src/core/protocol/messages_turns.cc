#include "core/protocol/messages_turns.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/protocol/image_part.h"
#include "core/protocol/json_fields.h"

namespace penstock::protocol {
namespace {

constexpr std::string_view kBlankLine = "\n\n";
constexpr std::string_view kBlocks[] = {"text", "thinking", "redacted_thinking", "tool_use",
                                        "tool_result"};
constexpr std::string_view kOtherBlocks[] = {
    "document",
    "search_result",
    "tool_reference",
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "mcp_tool_use",
    "mcp_tool_result",
    "container_upload",
    "compaction",
};

void join(std::string& text, std::string_view more) {
  if (!text.empty() && !more.empty()) text += kBlankLine;
  text += more;
}

// The type of a block; an error for anything but `known`, by name.
Result<std::size_t> read_block_type(JsonRef block, std::initializer_list<std::string_view> known) {
  TRY_STATUS(expect_object(block));
  TRY(const auto type, required_member(block, "type"));
  TRY(const auto name, read_string(type));
  const auto* const found = std::ranges::find(known, name);
  if (found != known.end()) return static_cast<std::size_t>(found - known.begin());
  if (is_image_type(type)) return refuse_image(block);
  if (std::ranges::find(kOtherBlocks, name) != std::end(kOtherBlocks)) {
    return unsupported(type, fmt::format("{} is not supported here", name));
  }
  if (std::ranges::find(kBlocks, name) != std::end(kBlocks)) {
    return invalid_value(type, fmt::format("{} does not belong here", name));
  }
  return invalid_value(type, "is not a known kind of content block");
}

Result<std::string> read_text_block(JsonRef block) {
  TRY(const auto text, required_member(block, "text"));
  return read_string(text);
}

// A string, or text blocks joined by a blank line.
Result<std::string> read_texts(JsonRef content) {
  if (content.is_string()) return content.string();
  if (!content.is_array()) return invalid_type(content, "a string or an array of blocks");
  std::string out;
  for (auto block = content.first_child(); block; block = block.next_sibling()) {
    TRY_STATUS(read_block_type(block, {"text"}));
    TRY(const auto text, read_text_block(block));
    join(out, text);
  }
  return out;
}

// The last message if it has this role, else a new one.
Message& turn(std::vector<Message>& messages, Role role) {
  if (messages.empty() || messages.back().role != role) {
    messages.emplace_back();
    messages.back().role = role;
  }
  return messages.back();
}

Status read_tool_result(JsonRef block, std::vector<Message>& messages) {
  TRY(const auto id, required_member(block, "tool_use_id"));
  Message result;
  result.role = Role::kTool;
  TRY(result.tool_call_id, read_string(id));
  const auto caller = std::find_if(messages.rbegin(), messages.rend(),
                                   [](const Message& m) { return m.role == Role::kAssistant; });
  const bool asked = caller != messages.rend() &&
                     std::ranges::find(caller->tool_calls, result.tool_call_id, &ToolCall::id) !=
                         caller->tool_calls.end();
  if (!asked) return invalid_value(id, "answers no tool_use of the assistant's turn before it");
  if (const auto content = optional_member(block, "content")) {
    TRY(result.text, read_texts(content));
  }
  if (const auto failed = optional_member(block, "is_error")) {
    TRY(const bool is_error, read_bool(failed));
    // The model knows no other sign of a failure than the text.
    if (is_error) result.text.insert(0, result.text.empty() ? "Error" : "Error: ");
  }
  messages.push_back(std::move(result));
  return {};
}

Status read_user(JsonRef content, std::vector<Message>& messages) {
  if (content.is_string()) {
    join(turn(messages, Role::kUser).text, content.string());
    return {};
  }
  for (auto block = content.first_child(); block; block = block.next_sibling()) {
    TRY(const auto type, read_block_type(block, {"text", "tool_result"}));
    if (type == 1) {
      TRY_STATUS(read_tool_result(block, messages));
    } else {
      TRY(const auto text, read_text_block(block));
      join(turn(messages, Role::kUser).text, text);
    }
  }
  return {};
}

Status read_tool_use(JsonRef block, Message& out) {
  TRY(const auto id, required_member(block, "id"));
  ToolCall call;
  TRY(call.id, read_string(id));
  TRY(const auto name, required_member(block, "name"));
  TRY(call.name, read_string(name));
  if (call.name.empty()) return invalid_value(name, "must not be empty");
  TRY(const auto input, required_member(block, "input"));
  TRY_STATUS(expect_object(input));
  call.arguments = input.text();
  out.tool_calls.push_back(std::move(call));
  return {};
}

Status read_assistant(JsonRef content, std::vector<Message>& messages) {
  Message& out = turn(messages, Role::kAssistant);
  if (content.is_string()) {
    out.text += content.string();
    return {};
  }
  for (auto block = content.first_child(); block; block = block.next_sibling()) {
    TRY(const auto type,
        read_block_type(block, {"text", "tool_use", "thinking", "redacted_thinking"}));
    if (type == 0) {
      TRY(const auto text, read_text_block(block));
      out.text += text;
    } else if (type == 1) {
      TRY_STATUS(read_tool_use(block, out));
    } else if (type == 2) {
      TRY(const auto thinking, required_member(block, "thinking"));
      TRY(const auto text, read_string(thinking));
      out.reasoning += text;
    }
  }
  return {};
}

Status read_turn(JsonRef message, Conversation& conversation) {
  TRY_STATUS(expect_object(message));
  TRY(const auto role, required_member(message, "role"));
  TRY(const auto index, read_choice(role, {"user", "assistant", "system"}));
  TRY(const auto content, required_member(message, "content"));
  if (!content.is_string() && !content.is_array()) {
    return invalid_type(content, "a string or an array of blocks");
  }
  // Only the beginning of an answer may be nothing.
  const bool empty = content.is_string() ? content.equals("") : !content.first_child();
  if (empty && (index != 1 || message.next_sibling())) {
    return invalid_value(content, "must not be empty");
  }
  auto& messages = conversation.messages;
  if (index == 0) return read_user(content, messages);
  if (index == 2) {
    TRY(const auto text, read_texts(content));
    join(turn(messages, Role::kSystem).text, text);
    return {};
  }
  if (!empty) TRY_STATUS(read_assistant(content, messages));
  const bool begins_answer =
      !message.next_sibling() && !messages.empty() && messages.back().role == Role::kAssistant;
  if (!begins_answer) return {};
  if (!messages.back().tool_calls.empty()) {
    return invalid_value(content,
                         "the last turn calls tools; send their tool_result in a user turn");
  }
  conversation.continue_last_assistant = true;
  return {};
}

}  // namespace

Status read_turns(JsonRef body, Conversation& conversation) {
  if (const auto system = optional_member(body, "system")) {
    TRY(auto text, read_texts(system));
    if (!text.empty()) turn(conversation.messages, Role::kSystem).text = std::move(text);
  }
  TRY(const auto messages, required_member(body, "messages"));
  TRY_STATUS(expect_array(messages));
  const auto first = messages.first_child();
  if (!first) return invalid_value(messages, "must hold at least one message");
  for (auto message = first; message; message = message.next_sibling()) {
    TRY_STATUS(read_turn(message, conversation));
  }
  return {};
}

}  // namespace penstock::protocol
