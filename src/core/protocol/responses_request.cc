#include "core/protocol/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/protocol/json_fields.h"
#include "core/protocol/json_writer.h"
#include "core/protocol/request_fields.h"

namespace penstock::protocol {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kIdBytesMax = 128;
constexpr std::string_view kOnlyFunctions = "only functions can be chosen here";

Status refuse_unsupported(JsonRef body) {
  if (const auto conversation = optional_member(body, "conversation")) {
    return unsupported(conversation, "is not supported here, use previous_response_id");
  }
  if (const auto prompt = optional_member(body, "prompt")) {
    return unsupported(prompt, "prompt templates are not supported here, send input");
  }
  return {};
}

Status read_truncation(JsonRef body, ChatRequest& chat) {
  const auto truncation = optional_member(body, "truncation");
  if (!truncation) return {};
  TRY(const auto index, read_choice(truncation, {"disabled", "auto"}));
  chat.truncates = index == 1;
  return {};
}

Status read_text_options(JsonRef body, ChatRequest& chat) {
  const auto text = optional_member(body, "text");
  if (!text) return {};
  TRY_STATUS(expect_object(text));
  if (const auto verbosity = optional_member(text, "verbosity"))
    TRY_STATUS(read_choice(verbosity, {"low", "medium", "high"}));
  const auto format = optional_member(text, "format");
  if (!format) return {};
  chat.constraint_field = "text.format";
  return read_answer_format(format, chat);
}

Status read_reasoning_options(JsonRef body, ChatRequest& chat) {
  const auto reasoning = optional_member(body, "reasoning");
  if (!reasoning) return {};
  TRY_STATUS(expect_object(reasoning));
  for (const std::string_view name : {"summary", "generate_summary"}) {
    if (const auto summary = optional_member(reasoning, name))
      TRY_STATUS(read_choice(summary, {"auto", "concise", "detailed"}));
  }
  if (const auto effort = optional_member(reasoning, "effort"))
    TRY_STATUS(read_effort(effort, chat));
  return {};
}

Status read_include(JsonRef body, ResponsesRequest& request) {
  bool logprobs = false;
  if (const auto include = optional_member(body, "include")) {
    TRY_STATUS(expect_array(include));
    for (auto item = include.first_child(); item; item = item.next_sibling()) {
      TRY(const auto index,
          read_choice(item,
                      {"reasoning.encrypted_content", "message.output_text.logprobs",
                       "message.input_image.image_url", "file_search_call.results",
                       "web_search_call.results", "web_search_call.action.sources",
                       "code_interpreter_call.outputs", "computer_call_output.output.image_url"}));
      if (index == 0) request.encrypted_reasoning = true;
      if (index == 1) logprobs = true;
    }
  }
  std::int64_t count = 0;
  if (const auto top = optional_member(body, "top_logprobs")) {
    TRY(count, read_integer(top, {0, 20}));
  }
  if (logprobs) request.chat.sampling.top_logprobs = static_cast<std::int32_t>(count);
  return {};
}

Status read_limits(JsonRef body, ChatRequest& chat) {
  chat.max_tokens_field = "max_output_tokens";
  if (const auto tokens = optional_member(body, "max_output_tokens")) {
    TRY(const auto count, read_integer(tokens, {16, kInt32Max}));
    chat.sampling.max_tokens = static_cast<std::uint32_t>(count);
  }
  if (const auto calls = optional_member(body, "max_tool_calls"))
    TRY_STATUS(read_integer(calls, {1, kInt32Max}));  // counts calls of hosted tools, of which none
  return {};
}

Status read_flags(JsonRef body, ResponsesRequest& request) {
  const struct {
    std::string_view name;
    bool& flag;
  } flags[] = {{"stream", request.chat.stream},
               {"store", request.store},
               {"background", request.background},
               {"parallel_tool_calls", request.chat.parallel_tool_calls}};
  for (const auto& [name, flag] : flags) {
    if (const auto value = optional_member(body, name)) {
      TRY(flag, read_bool(value));
    }
  }
  if (request.background && !request.store) {
    return invalid_value(body.find("background"),
                         "needs \"store\": true, or nobody could fetch it");
  }
  if (const auto options = optional_member(body, "stream_options")) {
    TRY_STATUS(expect_object(options));
    if (const auto obfuscate = optional_member(options, "include_obfuscation"))
      TRY_STATUS(read_bool(obfuscate));
  }
  if (const auto previous = optional_member(body, "previous_response_id")) {
    TRY(request.previous_response_id, read_string(previous, kIdBytesMax));
    if (request.previous_response_id.empty()) return invalid_value(previous, "must not be empty");
  }
  return {};
}

// The function as Chat Completions writes it, so that the prompt is the same: everything but the
// type, in the client's order and spelling.
std::string function_object(JsonRef tool, std::string_view flat_name) {
  std::string out = R"({"name":)";
  append_json_string(out, flat_name);
  for (auto key = tool.first_child(); key;) {
    const auto value = key.next_sibling();
    const bool wanted =
        key.equals("description") || key.equals("parameters") || key.equals("strict");
    if (wanted && !value.is_null())
      out.append(",").append(key.text()).append(":").append(value.text());
    key = value.next_sibling();
  }
  return out += '}';
}

Status read_function(JsonRef tool, std::string_view space, const std::string& path,
                     ResponsesRequest& request) {
  TRY(const auto name, required_member(tool, "name"));
  TRY(auto text, read_string(name));
  if (!is_function_name(text))
    return invalid_value(name, "must be 1 to 64 letters, digits, _ or -");
  if (const auto description = optional_member(tool, "description")) {
    if (!description.is_string()) return invalid_type(description, "a string");
  }
  if (const auto parameters = optional_member(tool, "parameters"))
    TRY_STATUS(expect_object(parameters));
  bool is_strict = false;
  if (const auto strict = optional_member(tool, "strict")) {
    TRY(is_strict, read_bool(strict));
  }
  auto flat = flat_function_name(space, text);
  auto schema = function_object(tool, flat);
  if (!space.empty()) request.spaces[flat] = {std::string(space), std::move(text)};
  request.chat.conversation.tools.push_back(
      {std::move(flat), std::move(schema), is_strict, path + ".parameters"});
  return {};
}

Status read_namespace(JsonRef tool, const std::string& path, const ChatLimits& limits,
                      ResponsesRequest& request);

// `path`: where the tool stands in the request.
Status read_tool(JsonRef tool, std::string_view space, const std::string& path,
                 const ChatLimits& limits, ResponsesRequest& request) {
  TRY_STATUS(expect_object(tool));
  TRY(const auto type, required_member(tool, "type"));
  if (!type.is_string()) return invalid_type(type, "a string");
  if (request.chat.conversation.tools.size() == limits.tools_max) {
    return invalid_value(tool, fmt::format("is more than {} tools", limits.tools_max));
  }
  if (type.equals("function")) return read_function(tool, space, path, request);
  if (type.equals("namespace") && space.empty()) return read_namespace(tool, path, limits, request);
  return {};  // hosted and custom tools: declared, not offered
}

Status read_namespace(JsonRef tool, const std::string& path, const ChatLimits& limits,
                      ResponsesRequest& request) {
  TRY(const auto name, required_member(tool, "name"));
  TRY(const auto space, read_string(name));
  if (!is_function_name(space))
    return invalid_value(name, "must be 1 to 64 letters, digits, _ or -");
  const auto list = optional_member(tool, "tools");
  if (!list) return {};
  TRY_STATUS(expect_array(list));
  std::size_t index = 0;
  for (auto item = list.first_child(); item; item = item.next_sibling()) {
    TRY_STATUS(read_tool(item, space, fmt::format("{}.tools[{}]", path, index++), limits, request));
  }
  return {};
}

// {"type":"function","name":...} of a function that was declared.
Result<std::string> read_tool_reference(JsonRef reference, const ResponsesRequest& request) {
  TRY(const auto name, required_member(reference, "name"));
  TRY(auto text, read_string(name));
  if (const auto space = optional_member(reference, "namespace")) {
    TRY(const auto prefix, read_string(space));
    text = flat_function_name(prefix, text);
  }
  const auto& tools = request.chat.conversation.tools;
  if (!std::ranges::any_of(tools, [&](const auto& tool) { return tool.name == text; }))
    return invalid_value(name, "is not among the tools");
  return text;
}

Status read_allowed_tools(JsonRef choice, ResponsesRequest& request) {
  ToolChoice& out = request.chat.tool_choice;
  if (const auto mode = optional_member(choice, "mode")) {
    TRY(const auto index, read_choice(mode, {"auto", "required"}));
    if (index == 1) out.mode = ToolChoiceMode::kRequired;
  }
  TRY(const auto list, required_member(choice, "tools"));
  TRY_STATUS(expect_array(list));
  if (!list.first_child()) return invalid_value(list, "must name at least one tool");
  for (auto item = list.first_child(); item; item = item.next_sibling()) {
    TRY_STATUS(expect_object(item));
    TRY(const auto type, required_member(item, "type"));
    if (!type.is_string()) return invalid_type(type, "a string");
    if (!type.equals("function")) continue;  // not offered anyway
    TRY(auto name, read_tool_reference(item, request));
    out.allowed.push_back(std::move(name));
  }
  if (!out.allowed.empty()) return {};
  if (out.mode == ToolChoiceMode::kRequired) return unsupported(list, kOnlyFunctions);
  out.mode = ToolChoiceMode::kNone;
  return {};
}

Status read_tool_choice(JsonRef choice, ResponsesRequest& request) {
  ToolChoice& out = request.chat.tool_choice;
  if (choice.is_string()) {
    TRY(const auto index, read_choice(choice, {"auto", "none", "required"}));
    constexpr ToolChoiceMode kModes[] = {ToolChoiceMode::kAuto, ToolChoiceMode::kNone,
                                         ToolChoiceMode::kRequired};
    out.mode = kModes[index];
    if (out.mode == ToolChoiceMode::kRequired && request.chat.conversation.tools.empty())
      return invalid_value(choice, "\"required\" needs functions among the tools");
    return {};
  }
  if (!choice.is_object()) return invalid_type(choice, "a string or an object");
  TRY(const auto type, required_member(choice, "type"));
  if (!type.is_string()) return invalid_type(type, "a string");
  if (type.equals("allowed_tools")) return read_allowed_tools(choice, request);
  if (!type.equals("function")) return unsupported(type, kOnlyFunctions);
  out.mode = ToolChoiceMode::kNamed;
  TRY(out.name, read_tool_reference(choice, request));
  return {};
}

Status read_tools(JsonRef body, const ChatLimits& limits, ResponsesRequest& request) {
  if (const auto list = optional_member(body, "tools")) {
    TRY_STATUS(expect_array(list));
    std::size_t index = 0;
    for (auto tool = list.first_child(); tool; tool = tool.next_sibling())
      TRY_STATUS(read_tool(tool, {}, fmt::format("tools[{}]", index++), limits, request));
    TRY_STATUS(check_tool_names(list, request.chat.conversation.tools));
  }
  if (const auto choice = optional_member(body, "tool_choice"))
    return read_tool_choice(choice, request);
  return {};
}

Status read_instructions(JsonRef body, std::vector<Message>& messages) {
  const auto instructions = optional_member(body, "instructions");
  if (!instructions) return {};
  Message message;
  message.role = Role::kSystem;
  TRY(message.text, read_string(instructions));
  if (!message.text.empty()) messages.push_back(std::move(message));
  return {};
}

// Adds the input to what the reader has.
Status read_input(JsonRef body, ResponseItemReader& reader) {
  const auto input = optional_member(body, "input");
  if (!input) return {};
  if (input.is_array()) {
    for (auto item = input.first_child(); item; item = item.next_sibling())
      TRY_STATUS(reader.read(item));
    return {};
  }
  if (!input.is_string()) return invalid_type(input, "a string or an array of items");
  return reader.read_all("[" + listed_text(input.string(), "msg") + "]");
}

Status check_input(JsonRef body, const ResponsesRequest& request, bool empty) {
  const auto input = optional_member(body, "input");
  if (!input && request.previous_response_id.empty()) return missing(body, "input");
  if (input && empty && !request.needs_stored())
    return invalid_value(input, "must hold at least one item");
  return {};
}

// `raw` as sent, or `usual` when it was not.
void append_echo(std::string& out, std::string_view name, JsonRef raw, std::string_view usual) {
  out.append(out.empty() ? "\"" : ",\"").append(name).append("\":");
  append_compact_json(out, raw ? raw.text() : usual);
}

// A tool as listed: functions with every key that clients look for.
void append_tool_echo(std::string& out, JsonRef tool) {
  append_compact_json(out, tool.text());
  if (!tool.find("type").equals("function")) return;
  out.pop_back();
  for (const std::string_view name : {"description", "parameters", "strict"}) {
    if (!tool.find(name)) out.append(",\"").append(name).append("\":null");
  }
  out += '}';
}

std::string echo_of(JsonRef body, const ResponsesRequest& request) {
  std::string out;
  const auto raw = [&](std::string_view name, std::string_view usual) {
    append_echo(out, name, optional_member(body, name), usual);
  };
  raw("background", "false");
  raw("previous_response_id", "null");
  raw("instructions", "null");
  append_echo(out, "tools", {}, "[");
  if (const auto tools = optional_member(body, "tools")) {
    for (auto tool = tools.first_child(); tool; tool = tool.next_sibling()) {
      append_tool_echo(out, tool);
      if (tool.next_sibling()) out += ',';
    }
  }
  out += ']';
  raw("tool_choice", R"("auto")");
  raw("truncation", R"("disabled")");
  raw("parallel_tool_calls", "true");
  const auto text = optional_member(body, "text");
  append_echo(out, "text", {}, R"({"format":)");
  const auto format = text ? optional_member(text, "format") : JsonRef();
  append_compact_json(out, format ? format.text() : R"({"type":"text"})");
  if (const auto verbosity = text ? optional_member(text, "verbosity") : JsonRef())
    out.append(R"(,"verbosity":)").append(verbosity.text());
  out += '}';
  raw("top_p", "1");
  raw("presence_penalty", "0");
  raw("frequency_penalty", "0");
  raw("top_logprobs", "0");
  raw("temperature", "1");
  const auto reasoning = optional_member(body, "reasoning");
  append_echo(out, "reasoning", {}, R"({"effort":)");
  const auto effort = reasoning ? optional_member(reasoning, "effort") : JsonRef();
  const auto summary = reasoning ? optional_member(reasoning, "summary") : JsonRef();
  out.append(effort ? effort.text() : "null").append(R"(,"summary":)");
  out.append(summary ? summary.text() : "null").append("}");
  raw("max_output_tokens", "null");
  raw("max_tool_calls", "null");
  raw("store", "true");
  append_echo(out, "service_tier", {}, {});
  const std::string_view tier = request.chat.service_tier;
  append_json_string(out, tier.empty() || tier == "auto" ? "default"
                          : tier == "fast"               ? "priority"
                                                         : tier);
  raw("metadata", "{}");
  raw("safety_identifier", "null");
  raw("prompt_cache_key", "null");
  raw("user", "null");
  return out;
}

}  // namespace

Result<ResponsesRequest> parse_responses_request(std::string_view body, const Seal& seal,
                                                 const ChatLimits& limits) {
  TRY(const auto document, JsonDocument::parse(body, limits.json));
  return read_responses_request(document.root(), seal, limits);
}

Result<ResponsesRequest> read_responses_request(JsonRef root, const Seal& seal,
                                                const ChatLimits& limits) {
  TRY_STATUS(expect_object(root));
  ResponsesRequest request;
  request.chat.prompt_field = "input";
  TRY_STATUS(read_identity(root, request.chat));
  TRY_STATUS(refuse_unsupported(root));
  TRY_STATUS(read_truncation(root, request.chat));
  TRY_STATUS(read_flags(root, request));
  auto& messages = request.chat.conversation.messages;
  TRY_STATUS(read_instructions(root, messages));
  ResponseItemReader reader(seal, nullptr);
  TRY_STATUS(read_input(root, reader));
  request.references = reader.references();
  TRY_STATUS(check_input(root, request, reader.messages().empty()));
  std::ranges::move(reader.take(), std::back_inserter(messages));
  TRY_STATUS(read_tools(root, limits, request));
  TRY_STATUS(read_numbers(root, request.chat.sampling));
  TRY_STATUS(read_text_options(root, request.chat));
  TRY_STATUS(read_reasoning_options(root, request.chat));
  TRY_STATUS(read_include(root, request));
  TRY_STATUS(read_limits(root, request.chat));
  if (const auto seed = optional_member(root, "seed")) {
    TRY(const auto value, read_integer(seed, {std::numeric_limits<std::int64_t>::min(),
                                              std::numeric_limits<std::int64_t>::max()}));
    request.chat.sampling.seed = static_cast<std::uint64_t>(value);
    request.chat.has_seed = true;
  }
  request.echo = echo_of(root, request);
  return request;
}

Status complete_conversation(ResponsesRequest& request, JsonRef body, const Seal& seal,
                             const StoredContext& context) {
  auto& messages = request.chat.conversation.messages;
  messages.clear();
  TRY_STATUS(read_instructions(body, messages));
  ResponseItemReader reader(seal, &context.known);
  for (const auto& items : context.items)
    TRY_STATUS(reader.read_all(items));
  TRY_STATUS(read_input(body, reader));
  if (reader.messages().empty()) {
    return fail(ErrorCode::kInvalidArgument, "input: there is no message to answer", "input");
  }
  std::ranges::move(reader.take(), std::back_inserter(messages));
  return {};
}

std::string stored_input(JsonRef body, std::string_view name, const ItemsById& known) {
  const auto input = optional_member(body, "input");
  if (!input) return "[]";
  if (input.is_string()) {
    return "[" + listed_text(input.string(), fmt::format("msg_{}_i0", name)) + "]";
  }
  std::string out = "[";
  std::size_t index = 0;
  for (auto item = input.first_child(); item; item = item.next_sibling(), ++index) {
    if (index > 0) out += ',';
    const bool reference =
        item.find("type") ? item.find("type").equals("item_reference") : !item.find("role");
    const auto found = reference ? known.find(item.find("id").string()) : known.end();
    out += found != known.end()
               ? found->second
               : listed_item(item, fmt::format("{}_{}_i{}", item_id_prefix(item), name, index));
  }
  return out += ']';
}

}  // namespace penstock::protocol
