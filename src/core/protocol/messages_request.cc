#include "core/protocol/messages_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/protocol/json_fields.h"
#include "core/protocol/json_writer.h"
#include "core/protocol/messages_turns.h"
#include "core/protocol/request_fields.h"

namespace penstock::protocol {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kToolNameBytesMax = 128;
constexpr std::int64_t kThinkingBudgetMin = 1024;

// A schema that the answer must hold to, under either of its names.
Status read_format(JsonRef body, ChatRequest& request) {
  auto format = optional_member(body, "output_format");
  if (format) request.constraint_field = "output_format";
  if (const auto output = optional_member(body, "output_config")) {
    TRY_STATUS(expect_object(output));
    if (const auto newer = optional_member(output, "format")) {
      format = newer;
      request.constraint_field = "output_config.format";
    }
  }
  if (!format) return {};
  TRY_STATUS(expect_object(format));
  TRY(const auto type, required_member(format, "type"));
  TRY_STATUS(read_choice(type, {"json_schema"}));
  TRY(const auto schema, required_member(format, "schema"));
  TRY_STATUS(expect_object(schema));
  request.constraint = {Constraint::Kind::kJsonSchema, std::string(schema.text()), std::nullopt};
  return {};
}

// What would change the answer and is not supported. Everything unknown is ignored.
Status refuse_unsupported(JsonRef body) {
  if (const auto servers = optional_member(body, "mcp_servers")) {
    TRY_STATUS(expect_array(servers));
    if (servers.first_child()) {
      return unsupported(servers, "is not supported here; connect to them and send their tools");
    }
  }
  return {};
}

// The function object that prompts are written with, as Chat Completions would bring it.
std::string function_object(JsonRef name, JsonRef description, JsonRef schema) {
  std::string out = R"({"name":)";
  out += name.text();
  if (description) out.append(R"(,"description":)").append(description.text());
  out.append(R"(,"parameters":)").append(schema.text()).append("}");
  return out;
}

// True when it is a tool for our models; false for a typed one.
Result<bool> read_tool(JsonRef tool, std::size_t index, std::vector<ToolDefinition>& tools) {
  TRY_STATUS(expect_object(tool));
  TRY(const auto name, required_member(tool, "name"));
  TRY(auto name_text, read_string(name));
  if (const auto type = optional_member(tool, "type")) {
    TRY_STATUS(read_string(type));
    if (!type.equals("custom")) return false;
  }
  if (!is_function_name(name_text, kToolNameBytesMax)) {
    return invalid_value(name,
                         fmt::format("must be 1 to {} letters, digits, _ or -", kToolNameBytesMax));
  }
  const auto description = optional_member(tool, "description");
  if (description) TRY_STATUS(read_string(description));
  TRY(const auto schema, required_member(tool, "input_schema"));
  TRY_STATUS(expect_object(schema));
  bool is_strict = false;
  if (const auto strict = optional_member(tool, "strict")) {
    TRY(is_strict, read_bool(strict));
  }
  tools.push_back({std::move(name_text), function_object(name, description, schema), is_strict,
                   fmt::format("tools[{}].input_schema", index)});
  return true;
}

Status read_tool_choice(JsonRef choice, ChatRequest& request) {
  TRY_STATUS(expect_object(choice));
  TRY(const auto type, required_member(choice, "type"));
  TRY(const auto index, read_choice(type, {"auto", "none", "any", "tool"}));
  constexpr ToolChoiceMode kModes[] = {ToolChoiceMode::kAuto, ToolChoiceMode::kNone,
                                       ToolChoiceMode::kRequired, ToolChoiceMode::kNamed};
  request.tool_choice.mode = kModes[index];
  const auto& tools = request.conversation.tools;
  if (index == 2 && tools.empty()) return invalid_value(type, "\"any\" needs tools");
  if (index == 3) {
    TRY(const auto name, required_member(choice, "name"));
    TRY(request.tool_choice.name, read_string(name));
    if (std::ranges::find(tools, request.tool_choice.name, &ToolDefinition::name) == tools.end()) {
      return invalid_value(name, "is not among the tools that have an input_schema");
    }
  }
  if (const auto serial = optional_member(choice, "disable_parallel_tool_use")) {
    TRY(const bool disabled, read_bool(serial));
    request.parallel_tool_calls = !disabled;
  }
  return {};
}

Status read_tools(JsonRef body, const ChatLimits& limits, ChatRequest& request) {
  auto& tools = request.conversation.tools;
  if (const auto list = optional_member(body, "tools")) {
    TRY_STATUS(expect_array(list));
    std::size_t index = 0;
    for (auto tool = list.first_child(); tool; tool = tool.next_sibling()) {
      TRY_STATUS(read_tool(tool, index++, tools));
      if (tools.size() > limits.tools_max) {
        return invalid_value(list, fmt::format("holds more than {} tools", limits.tools_max));
      }
    }
    TRY_STATUS(check_tool_names(list, tools));
  }
  if (const auto choice = optional_member(body, "tool_choice")) {
    TRY_STATUS(read_tool_choice(choice, request));
  }
  return {};
}

Status read_sampling(JsonRef body, MessagesCall call, ChatRequest& request) {
  auto& out = request.sampling;
  if (call == MessagesCall::kAnswer) {
    TRY(const auto max_tokens, required_member(body, "max_tokens"));
    TRY(const auto count, read_integer(max_tokens, {1, kInt32Max}));
    out.max_tokens = static_cast<std::uint32_t>(count);
    request.fit_max_tokens = true;
  }
  if (const auto temperature = optional_member(body, "temperature")) {
    TRY_STATUS(read_number(temperature, {0, 1}));
  }
  TRY_STATUS(read_numbers(body, out));
  if (const auto top_k = optional_member(body, "top_k")) {
    TRY(const auto count, read_integer(top_k, {0, kInt32Max}));
    out.top_k = static_cast<std::int32_t>(count);
  }
  return {};
}

Status read_thinking(JsonRef body, ChatRequest& request) {
  // Without the field there is no thinking, whatever the effort.
  request.conversation.thinking = Thinking::kDisabled;
  if (const auto thinking = optional_member(body, "thinking")) {
    TRY_STATUS(expect_object(thinking));
    TRY(const auto type, required_member(thinking, "type"));
    TRY(const auto index, read_choice(type, {"disabled", "adaptive", "enabled"}));
    if (index != 0) request.conversation.thinking = Thinking::kEnabled;
    if (index == 2) {
      TRY(const auto budget, required_member(thinking, "budget_tokens"));
      TRY(const auto tokens, read_integer(budget, {kThinkingBudgetMin, kInt32Max}));
      if (request.sampling.max_tokens != 0 && tokens >= request.sampling.max_tokens) {
        return invalid_value(budget, fmt::format("must be less than max_tokens, which is {}",
                                                 request.sampling.max_tokens));
      }
    }
  }
  const auto output = optional_member(body, "output_config");
  const auto effort = output ? optional_member(output, "effort") : JsonRef();
  if (!effort) return {};
  TRY(const auto index, read_choice(effort, {"low", "medium", "high", "xhigh", "max"}));
  request.reasoning_effort = static_cast<ReasoningEffort>(static_cast<int>(ReasoningEffort::kLow) +
                                                          static_cast<int>(index));
  return {};
}

Status read_rest(JsonRef body, const ChatLimits& limits, ChatRequest& request) {
  if (const auto stops = optional_member(body, "stop_sequences")) {
    TRY_STATUS(expect_array(stops));
    TRY_STATUS(read_stop_strings(stops, limits, request.stop));
  }
  if (const auto stream = optional_member(body, "stream")) {
    TRY(request.stream, read_bool(stream));
  }
  if (const auto tier = optional_member(body, "service_tier")) {
    TRY_STATUS(read_choice(tier, {"auto", "standard_only"}));
  }
  if (const auto metadata = optional_member(body, "metadata")) {
    TRY_STATUS(expect_object(metadata));
    if (const auto user = optional_member(metadata, "user_id")) {
      TRY(request.user_id, read_string(user, kUserIdBytesMax));
    }
  }
  return {};
}

}  // namespace

Result<ChatRequest> parse_messages_request(std::string_view body, MessagesCall call,
                                           const ChatLimits& limits) {
  TRY(const auto document, JsonDocument::parse(body, limits.json));
  const auto root = document.root();
  TRY_STATUS(expect_object(root));
  ChatRequest request;
  TRY_STATUS(read_model(root, request));
  TRY_STATUS(refuse_unsupported(root));
  TRY_STATUS(read_format(root, request));
  TRY_STATUS(read_turns(root, request.conversation));
  TRY_STATUS(read_tools(root, limits, request));
  TRY_STATUS(read_sampling(root, call, request));
  TRY_STATUS(read_thinking(root, request));
  TRY_STATUS(read_rest(root, limits, request));
  return request;
}

}  // namespace penstock::protocol
