#include "core/protocol/chat_messages.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/protocol/image_part.h"
#include "core/protocol/json_fields.h"
#include "core/protocol/request_fields.h"

namespace penstock::protocol {
namespace {

// One part of a content array; appends its text.
Status read_part(JsonRef part, std::string& text) {
  TRY_STATUS(expect_object(part));
  TRY(const auto type, required_member(part, "type"));
  if (!type.is_string()) return invalid_type(type, "a string");
  if (is_image_type(type)) return refuse_image(part);
  for (const std::string_view other : {"input_audio", "audio_url", "video_url", "file"}) {
    if (type.equals(other)) {
      return unsupported(type, fmt::format("{} parts are not supported here, only text", other));
    }
  }
  for (const std::string_view known : {"text", "refusal"}) {
    if (!type.equals(known)) continue;
    TRY(const auto value, required_member(part, known));
    TRY(const auto piece, read_string(value));
    text += piece;
    return {};
  }
  return invalid_value(type, "is not a known kind of content part");
}

// A string, or an array of parts whose texts are joined without anything between them.
Result<std::string> read_content(JsonRef content) {
  if (content.is_string()) return content.string();
  if (!content.is_array()) return invalid_type(content, "a string or an array of parts");
  std::string text;
  for (auto part = content.first_child(); part; part = part.next_sibling()) {
    TRY_STATUS(read_part(part, text));
  }
  return text;
}

Result<ToolCall> read_function(JsonRef function, std::string id) {
  TRY_STATUS(expect_object(function));
  ToolCall call;
  call.id = std::move(id);
  TRY(const auto name, required_member(function, "name"));
  TRY(call.name, read_string(name));
  if (call.name.empty()) return invalid_value(name, "must not be empty");
  TRY(const auto arguments, required_member(function, "arguments"));
  TRY(call.arguments, read_string(arguments));
  return call;
}

Status read_tool_calls(JsonRef message, Message& out) {
  if (const auto legacy = optional_member(message, "function_call")) {
    // The deprecated form has no id; the name serves, and the function's result answers by name.
    TRY(auto call, read_function(legacy, {}));
    call.id = call.name;
    out.tool_calls.push_back(std::move(call));
  }
  const auto calls = optional_member(message, "tool_calls");
  if (!calls) return {};
  TRY_STATUS(expect_array(calls));
  for (auto call = calls.first_child(); call; call = call.next_sibling()) {
    TRY_STATUS(expect_object(call));
    if (const auto type = optional_member(call, "type"); type && !type.equals("function")) {
      return unsupported(type, "only function calls are supported here");
    }
    TRY(const auto id, required_member(call, "id"));
    TRY(auto id_text, read_string(id));
    TRY(const auto function, required_member(call, "function"));
    TRY(auto read, read_function(function, std::move(id_text)));
    out.tool_calls.push_back(std::move(read));
  }
  return {};
}

// Assistant messages may have no content when something else says what they were.
Status read_assistant(JsonRef message, Message& out) {
  TRY_STATUS(read_tool_calls(message, out));
  for (const std::string_view key : {"reasoning_content", "reasoning"}) {
    const auto reasoning = optional_member(message, key);
    if (!reasoning || !out.reasoning.empty()) continue;
    TRY(out.reasoning, read_string(reasoning));
  }
  if (const auto content = optional_member(message, "content")) {
    TRY(out.text, read_content(content));
  } else if (const auto refusal = optional_member(message, "refusal")) {
    TRY(out.text, read_string(refusal));
  } else if (out.tool_calls.empty() && out.reasoning.empty()) {
    return missing(message, "content");
  }
  return {};
}

Status read_tool_result(JsonRef message, bool legacy, Message& out) {
  TRY(const auto id, required_member(message, legacy ? "name" : "tool_call_id"));
  TRY(out.tool_call_id, read_string(id));
  TRY(const auto content, required_member(message, "content"));
  TRY(out.text, read_content(content));
  return {};
}

Result<Message> read_message(JsonRef message) {
  TRY_STATUS(expect_object(message));
  TRY(const auto role, required_member(message, "role"));
  TRY(const auto index,
      read_choice(role, {"system", "developer", "user", "assistant", "tool", "function"}));
  constexpr Role kRoles[] = {Role::kSystem,    Role::kDeveloper, Role::kUser,
                             Role::kAssistant, Role::kTool,      Role::kTool};
  Message out;
  out.role = kRoles[index];
  if (out.role == Role::kAssistant) {
    TRY_STATUS(read_assistant(message, out));
  } else if (out.role == Role::kTool) {
    TRY_STATUS(read_tool_result(message, index == 5, out));
  } else {
    TRY(const auto content, required_member(message, "content"));
    TRY(out.text, read_content(content));
  }
  return out;
}

Status read_tool(JsonRef tool, std::size_t index, std::vector<ToolDefinition>& tools) {
  TRY_STATUS(expect_object(tool));
  TRY(const auto type, required_member(tool, "type"));
  if (!type.is_string()) return invalid_type(type, "a string");
  if (!type.equals("function")) return unsupported(type, "only function tools are supported here");
  TRY(const auto function, required_member(tool, "function"));
  TRY_STATUS(expect_object(function));
  TRY(const auto name, required_member(function, "name"));
  TRY(auto name_text, read_string(name));
  if (!is_function_name(name_text)) {
    return invalid_value(name, "must be 1 to 64 letters, digits, _ or -");
  }
  if (const auto description = optional_member(function, "description")) {
    if (!description.is_string()) return invalid_type(description, "a string");
  }
  if (const auto parameters = optional_member(function, "parameters")) {
    TRY_STATUS(expect_object(parameters));
  }
  bool is_strict = false;
  if (const auto strict = optional_member(function, "strict")) {
    TRY(is_strict, read_bool(strict));
  }
  tools.push_back({std::move(name_text), std::string(function.text()), is_strict,
                   fmt::format("tools[{}].function.parameters", index)});
  return {};
}

// {"type":"function","function":{"name":...}} of a tool that exists.
Result<std::string> read_tool_reference(JsonRef reference,
                                        const std::vector<ToolDefinition>& tools) {
  TRY_STATUS(expect_object(reference));
  TRY(const auto function, required_member(reference, "function"));
  TRY_STATUS(expect_object(function));
  TRY(const auto name, required_member(function, "name"));
  TRY(auto text, read_string(name));
  const bool known =
      std::ranges::any_of(tools, [&](const auto& tool) { return tool.name == text; });
  if (!known) return invalid_value(name, "is not among the tools");
  return text;
}

Status read_allowed_tools(JsonRef choice, const std::vector<ToolDefinition>& tools,
                          ToolChoice& out) {
  TRY(const auto allowed, required_member(choice, "allowed_tools"));
  TRY_STATUS(expect_object(allowed));
  if (const auto mode = optional_member(allowed, "mode")) {
    TRY(const auto index, read_choice(mode, {"auto", "required"}));
    out.mode = index == 0 ? ToolChoiceMode::kAuto : ToolChoiceMode::kRequired;
  }
  TRY(const auto list, required_member(allowed, "tools"));
  TRY_STATUS(expect_array(list));
  for (auto item = list.first_child(); item; item = item.next_sibling()) {
    TRY(auto name, read_tool_reference(item, tools));
    out.allowed.push_back(std::move(name));
  }
  if (out.allowed.empty()) return invalid_value(list, "must name at least one tool");
  return {};
}

Status read_tool_choice(JsonRef choice, const std::vector<ToolDefinition>& tools, ToolChoice& out) {
  if (choice.is_string()) {
    TRY(const auto index, read_choice(choice, {"auto", "none", "required"}));
    constexpr ToolChoiceMode kModes[] = {ToolChoiceMode::kAuto, ToolChoiceMode::kNone,
                                         ToolChoiceMode::kRequired};
    out.mode = kModes[index];
    if (out.mode == ToolChoiceMode::kRequired && tools.empty()) {
      return invalid_value(choice, "\"required\" needs tools");
    }
    return {};
  }
  if (!choice.is_object()) return invalid_type(choice, "a string or an object");
  TRY(const auto type, required_member(choice, "type"));
  if (type.equals("custom")) return unsupported(type, "custom tools are not supported here");
  TRY(const auto index, read_choice(type, {"function", "allowed_tools"}));
  if (index == 1) return read_allowed_tools(choice, tools, out);
  out.mode = ToolChoiceMode::kNamed;
  TRY(out.name, read_tool_reference(choice, tools));
  return {};
}

}  // namespace

Status read_messages(JsonRef body, Conversation& conversation) {
  TRY(const auto messages, required_member(body, "messages"));
  TRY_STATUS(expect_array(messages));
  for (auto message = messages.first_child(); message; message = message.next_sibling()) {
    TRY(auto read, read_message(message));
    const auto prefix = optional_member(message, "prefix");
    if (prefix) {
      TRY(conversation.continue_last_assistant, read_bool(prefix));
    }
    const bool last = !message.next_sibling();
    if (conversation.continue_last_assistant && (!last || read.role != Role::kAssistant)) {
      return invalid_value(prefix, "only the last message can be a prefix, from the assistant");
    }
    conversation.messages.push_back(std::move(read));
  }
  if (conversation.messages.empty()) {
    return invalid_value(messages, "must hold at least one message");
  }
  return {};
}

Status read_tools(JsonRef body, const ChatLimits& limits, ChatRequest& request) {
  auto& tools = request.conversation.tools;
  if (const auto list = optional_member(body, "tools")) {
    TRY_STATUS(expect_array(list));
    for (auto tool = list.first_child(); tool; tool = tool.next_sibling()) {
      if (tools.size() == limits.tools_max) {
        return invalid_value(list, fmt::format("holds more than {} tools", limits.tools_max));
      }
      TRY_STATUS(read_tool(tool, tools.size(), tools));
    }
    TRY_STATUS(check_tool_names(list, tools));
  }
  if (const auto choice = optional_member(body, "tool_choice")) {
    TRY_STATUS(read_tool_choice(choice, tools, request.tool_choice));
  }
  if (const auto parallel = optional_member(body, "parallel_tool_calls")) {
    TRY(request.parallel_tool_calls, read_bool(parallel));
  }
  return {};
}

}  // namespace penstock::protocol
