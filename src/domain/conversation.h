// A conversation as every protocol means it: roles, text, tool calls; no wire format in it.
//
// core/protocol turns the three API formats into this, core/prompt turns it into prompt spans.
// Invariants: text is valid UTF-8 (checked by the parsers).
// Concurrency: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

enum class Role : std::uint8_t { kSystem, kDeveloper, kUser, kAssistant, kTool };

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text as given or generated

  bool operator==(const ToolCall&) const = default;
};

// A function the model may call; `schema` is the function object as JSON text, key order kept.
struct ToolDefinition {
  std::string name;
  std::string schema;
  bool strict = false;     // its arguments have to be what its schema says
  std::string field = {};  // where the client wrote what its arguments are: "tools[2].parameters"

  bool operator==(const ToolDefinition&) const = default;
};

struct Message {
  Role role = Role::kUser;
  std::string text;
  std::string reasoning;             // assistant only
  std::vector<ToolCall> tool_calls;  // assistant only
  std::string tool_call_id;          // tool only

  bool operator==(const Message&) const = default;
};

enum class Thinking : std::uint8_t { kDefault, kEnabled, kDisabled };

struct Conversation {
  std::vector<Message> messages;
  std::vector<ToolDefinition> tools;
  Thinking thinking = Thinking::kDefault;
  bool continue_last_assistant = false;  // prefix completion: no end token after the last message
};

}  // namespace penstock
