#include "core/protocol/responses_items.h"

#include <fmt/format.h>

#include "core/protocol/image_part.h"
#include "core/protocol/json_writer.h"

namespace penstock::protocol {
namespace {

constexpr std::size_t kCallIdBytesMax = 64;
constexpr std::string_view kNamespaceMark = "__";

// One part of a content array; appends its text.
Status read_part(JsonRef part, std::string& text) {
  TRY_STATUS(expect_object(part));
  TRY(const auto type, required_member(part, "type"));
  if (!type.is_string()) return invalid_type(type, "a string");
  if (is_image_type(type)) return refuse_image(part);
  for (const std::string_view other : {"input_file", "input_audio"}) {
    if (!type.equals(other)) continue;
    return unsupported(type, fmt::format("{} parts are not supported here, only text", other));
  }
  TRY(const auto index, read_choice(type, {"input_text", "output_text", "text", "summary_text",
                                           "reasoning_text", "refusal"}));
  TRY(const auto value, required_member(part, index == 5 ? "refusal" : "text"));
  TRY(const auto piece, read_string(value));
  text += piece;
  return {};
}

// A string, or an array of parts whose texts are joined without anything between them.
Result<std::string> read_content(JsonRef content) {
  if (content.is_string()) return content.string();
  if (!content.is_array()) return invalid_type(content, "a string or an array of parts");
  std::string text;
  for (auto part = content.first_child(); part; part = part.next_sibling())
    TRY_STATUS(read_part(part, text));
  return text;
}

Result<std::string> read_call_id(JsonRef item) {
  TRY(const auto id, required_member(item, "call_id"));
  TRY(auto text, read_string(id, kCallIdBytesMax));
  if (text.empty()) return invalid_value(id, "must not be empty");
  return text;
}

// `json` goes after the key; an empty one is the caller's to write.
void append_member(std::string& out, std::string_view name, std::string_view json) {
  if (out.back() != '{') out += ',';
  out.append("\"").append(name).append("\":");
  append_compact_json(out, json);
}

void append_text_member(std::string& out, std::string_view name, std::string_view text) {
  append_member(out, name, {});
  append_json_string(out, text);
}

// Content in the long form: a string becomes the part that says the same.
void append_content(std::string& out, JsonRef item) {
  const auto content = item.find("content");
  if (!content.is_string()) return append_member(out, "content", content.text());
  const bool written = item.find("role").equals("assistant");
  append_member(out, "content",
                written ? R"([{"type":"output_text","text":)" : R"([{"type":"input_text","text":)");
  out += content.text();
  out += written ? R"(,"annotations":[]}])" : "}]";
}

}  // namespace

std::string flat_function_name(std::string_view space, std::string_view name) {
  std::string flat(space);
  if (!flat.empty() && !flat.ends_with(kNamespaceMark)) flat += kNamespaceMark;
  return flat += name;
}

Message& ResponseItemReader::assistant_turn(bool fresh) {
  if (fresh || !turn_open_) messages_.emplace_back().role = Role::kAssistant;
  turn_open_ = true;
  return messages_.back();
}

Status ResponseItemReader::read(JsonRef item) {
  TRY_STATUS(expect_object(item));
  const auto type = optional_member(item, "type");
  if (!type) {
    // The easy form of a message has no type; a reference may have none either.
    if (!item.find("role") && item.find("id")) return read_reference(item);
    return read_message(item);
  }
  if (!type.is_string()) return invalid_type(type, "a string");
  if (type.equals("message")) return read_message(item);
  if (type.equals("reasoning")) return read_reasoning(item);
  if (type.equals("function_call")) return read_call(item, false);
  if (type.equals("custom_tool_call")) return read_call(item, true);
  if (type.equals("function_call_output") || type.equals("custom_tool_call_output"))
    return read_output(item);
  if (type.equals("item_reference")) return read_reference(item);
  if (type.equals("compaction") || type.equals("compaction_summary")) return read_compaction(item);
  return unsupported(type, "items of this type are not supported here");
}

Status ResponseItemReader::read_all(std::string_view items) {
  TRY(const auto document, JsonDocument::parse(items));
  TRY_STATUS(expect_array(document.root()));
  for (auto item = document.root().first_child(); item; item = item.next_sibling())
    TRY_STATUS(read(item));
  return {};
}

Status ResponseItemReader::read_message(JsonRef item) {
  TRY(const auto role, required_member(item, "role"));
  TRY(const auto index, read_choice(role, {"system", "developer", "user", "assistant"}));
  constexpr Role kRoles[] = {Role::kSystem, Role::kDeveloper, Role::kUser, Role::kAssistant};
  TRY(const auto content, required_member(item, "content"));
  TRY(auto text, read_content(content));
  if (const auto phase = optional_member(item, "phase"))
    TRY_STATUS(read_choice(phase, {"commentary", "final_answer"}));
  if (kRoles[index] == Role::kAssistant) {
    const bool answered =
        turn_open_ && !(messages_.back().text.empty() && messages_.back().tool_calls.empty());
    assistant_turn(answered).text = std::move(text);
    return {};
  }
  turn_open_ = false;
  auto& message = messages_.emplace_back();
  message.role = kRoles[index];
  message.text = std::move(text);
  return {};
}

// What was sealed here is taken before what can be read; what neither gives is left out.
Status ResponseItemReader::read_reasoning(JsonRef item) {
  std::string text;
  if (const auto sealed = optional_member(item, "encrypted_content")) {
    TRY(const auto bytes, read_string(sealed));
    if (auto opened = seal_.open(kSealedReasoning, bytes)) text = std::move(*opened);
  }
  for (const std::string_view name : {"content", "summary"}) {
    const auto parts = optional_member(item, name);
    if (!parts) continue;
    TRY_STATUS(expect_array(parts));
    TRY(auto shown, read_content(parts));
    if (text.empty()) text = std::move(shown);
  }
  if (text.empty()) return {};
  const bool answered =
      turn_open_ && !(messages_.back().text.empty() && messages_.back().tool_calls.empty());
  assistant_turn(answered).reasoning += text;
  return {};
}

Status ResponseItemReader::read_call(JsonRef item, bool custom) {
  ToolCall call;
  TRY(call.id, read_call_id(item));
  TRY(const auto name, required_member(item, "name"));
  TRY(call.name, read_string(name));
  if (call.name.empty()) return invalid_value(name, "must not be empty");
  if (const auto space = optional_member(item, "namespace")) {
    TRY(const auto prefix, read_string(space));
    call.name = flat_function_name(prefix, call.name);
  }
  TRY(const auto arguments, required_member(item, custom ? "input" : "arguments"));
  TRY(call.arguments, read_string(arguments));
  if (custom) call.arguments = fmt::format(R"({{"input":{}}})", arguments.text());
  assistant_turn(false).tool_calls.push_back(std::move(call));
  return {};
}

Status ResponseItemReader::read_output(JsonRef item) {
  Message message;
  message.role = Role::kTool;
  TRY(message.tool_call_id, read_call_id(item));
  TRY(const auto output, required_member(item, "output"));
  TRY(message.text, read_content(output));
  turn_open_ = false;
  messages_.push_back(std::move(message));
  return {};
}

Status ResponseItemReader::read_reference(JsonRef item) {
  TRY(const auto id, required_member(item, "id"));
  TRY(auto text, read_string(id));
  if (known_ == nullptr) {
    references_.push_back(std::move(text));
    return {};
  }
  const auto found = known_->find(text);
  if (found == known_->end()) {
    return invalid_value(id, "no item with this id is stored here; send the item itself");
  }
  TRY(const auto document, JsonDocument::parse(found->second));
  // What is stored holds no references, so this ends.
  if (document.root().find("type").equals("item_reference")) return {};
  return read(document.root());
}

Status ResponseItemReader::read_compaction(JsonRef item) {
  TRY(const auto sealed, required_member(item, "encrypted_content"));
  TRY(const auto bytes, read_string(sealed));
  const auto items = seal_.open(kSealedCompaction, bytes);
  if (!items) {
    return invalid_value(sealed,
                         "can't be opened: it was made by another server or for another API key");
  }
  return read_all(*items);
}

std::string_view item_id_prefix(JsonRef item) {
  const auto type = item.find("type");
  if (!type || type.equals("message")) return "msg";
  if (type.equals("function_call")) return "fc";
  if (type.equals("reasoning")) return "rs";
  return "item";
}

std::string listed_item(JsonRef item, std::string_view fallback_id) {
  std::string out = "{";
  if (const auto id = item.find("id"); id && id.is_string()) {
    append_member(out, "id", id.text());
  } else {
    append_text_member(out, "id", fallback_id);
  }
  const auto type = optional_member(item, "type");
  const bool message = !type || type.equals("message");
  append_member(out, "type", message ? R"("message")" : type.text());
  if (message && !optional_member(item, "status")) append_text_member(out, "status", "completed");
  for (auto key = item.first_child(); key;) {
    const auto value = key.next_sibling();
    if (message && key.equals("content")) {
      append_content(out, item);
    } else if (!key.equals("id") && !key.equals("type") &&
               !(key.equals("status") && value.is_null())) {
      const auto name = key.text();  // its escapes stay as they are
      append_member(out, name.substr(1, name.size() - 2), value.text());
    }
    key = value.next_sibling();
  }
  return out += '}';
}

std::string listed_text(std::string_view text, std::string_view fallback_id) {
  std::string out = R"({"id":)";
  append_json_string(out, fallback_id);
  out +=
      R"(,"type":"message","status":"completed","role":"user","content":[{"type":"input_text","text":)";
  append_json_string(out, text);
  return out += "}]}";
}

}  // namespace penstock::protocol
