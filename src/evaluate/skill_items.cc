#include "evaluate/skill_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

namespace penstock::evaluate {
namespace {

namespace json = boost::json;

Result<std::string> text_field(const json::object& object, std::string_view key) {
  const auto* const value = object.if_contains(key);
  if (value == nullptr || !value->is_string())
    return fail(ErrorCode::kInvalidArgument, fmt::format("\"{}\" must be a string", key));
  return std::string(value->as_string());
}

Result<json::array> list_field(const json::object& object, std::string_view key) {
  const auto* const value = object.if_contains(key);
  if (value == nullptr || !value->is_array())
    return fail(ErrorCode::kInvalidArgument, fmt::format("\"{}\" must be a list", key));
  return value->as_array();
}

Result<std::vector<ExpectedCall>> expected_calls(const json::object& expect) {
  TRY(const auto list, list_field(expect, "tool_calls"));
  std::vector<ExpectedCall> calls;
  for (const auto& each : list) {
    const auto* const call = each.if_object();
    if (call == nullptr || !call->contains("arguments"))
      return fail(ErrorCode::kInvalidArgument, "a tool call needs \"name\" and \"arguments\"");
    TRY(auto name, text_field(*call, "name"));
    calls.push_back({std::move(name), call->at("arguments")});
  }
  return calls;
}

Result<SkillItem> parse_item(std::string_view line) {
  boost::system::error_code error;
  const json::value value = json::parse(line, error);
  const auto* const object = error ? nullptr : value.if_object();
  if (object == nullptr) return fail(ErrorCode::kInvalidArgument, "not a JSON object");
  SkillItem item;
  TRY(item.skill, text_field(*object, "skill"));
  TRY(item.id, text_field(*object, "id"));
  TRY(item.messages, list_field(*object, "messages"));
  if (object->contains("tools")) {
    TRY(item.tools, list_field(*object, "tools"));
  }
  if (const auto* thinking = object->if_contains("thinking"); thinking != nullptr) {
    if (!thinking->is_bool())
      return fail(ErrorCode::kInvalidArgument, "\"thinking\" must be true or false");
    item.thinking = thinking->as_bool();
  }
  const auto* const expect = object->if_contains("expect");
  if (expect == nullptr || !expect->is_object())
    return fail(ErrorCode::kInvalidArgument, "\"expect\" must be an object");
  const auto& wanted = expect->as_object();
  if (wanted.contains("content") == wanted.contains("tool_calls"))
    return fail(ErrorCode::kInvalidArgument, "\"expect\" needs \"content\" or \"tool_calls\"");
  if (wanted.contains("content")) {
    TRY(item.content, text_field(wanted, "content"));
  } else {
    TRY(item.tool_calls, expected_calls(wanted));
  }
  return item;
}

// choices[0].message, or nullptr.
const json::object* message_of(const json::value& response) {
  const auto* const object = response.if_object();
  const auto* const choices = object == nullptr ? nullptr : object->if_contains("choices");
  if (choices == nullptr || !choices->is_array() || choices->as_array().empty()) return nullptr;
  const auto* const choice = choices->as_array()[0].if_object();
  const auto* const message = choice == nullptr ? nullptr : choice->if_contains("message");
  return message == nullptr ? nullptr : message->if_object();
}

// Whether a call of the answer is the expected one; arguments come as a string of JSON.
bool same_call(const ExpectedCall& expected, const json::value& call) {
  const auto* const object = call.if_object();
  const auto* const function = object == nullptr ? nullptr : object->if_contains("function");
  if (function == nullptr || !function->is_object()) return false;
  const auto* const name = function->as_object().if_contains("name");
  const auto* const arguments = function->as_object().if_contains("arguments");
  if (name == nullptr || *name != json::value(expected.name)) return false;
  if (arguments == nullptr || !arguments->is_string()) return false;
  boost::system::error_code error;
  const json::value parsed = json::parse(arguments->as_string(), error);
  return !error && parsed == expected.arguments;
}

}  // namespace

Result<std::vector<SkillItem>> parse_items(std::string_view text, std::string_view path) {
  std::vector<SkillItem> items;
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto item = parse_item(line);
    if (!item)
      return std::unexpected(std::move(item).error().within(fmt::format("{}:{}", path, number)));
    items.push_back(std::move(*item));
  }
  return items;
}

std::string request_body(const SkillItem& item, std::string_view model, std::uint32_t max_tokens) {
  json::object body{{"model", model}, {"temperature", 0}, {"messages", item.messages}};
  if (!item.tools.empty()) body["tools"] = item.tools;
  if (max_tokens > 0) body["max_tokens"] = max_tokens;
  body["thinking"] = json::object{{"type", item.thinking ? "enabled" : "disabled"}};
  return json::serialize(body);
}

Result<Verdict> judge(const SkillItem& item, std::string_view response_body) {
  boost::system::error_code error;
  const json::value response = json::parse(response_body, error);
  const auto* const message = error ? nullptr : message_of(response);
  if (message == nullptr)
    return fail(ErrorCode::kDataLoss,
                fmt::format("not a chat completion: {}", response_body.substr(0, 200)));
  const auto* const content = message->if_contains("content");
  const auto* const calls = message->if_contains("tool_calls");
  const bool has_calls = calls != nullptr && calls->is_array() && !calls->as_array().empty();
  const std::string text =
      content != nullptr && content->is_string() ? std::string(content->as_string()) : "";
  Verdict verdict{false, has_calls ? json::serialize(*calls) : text};
  if (item.content) {
    verdict.right = !has_calls && text == *item.content;
  } else if (has_calls) {
    verdict.right = std::ranges::equal(*item.tool_calls, calls->as_array(), same_call);
  }
  return verdict;
}

}  // namespace penstock::evaluate
