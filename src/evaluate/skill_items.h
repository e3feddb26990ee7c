// Held-out items of a suite: what to ask and what the answer must be.
//
// A file holds one JSON object a line: {"skill", "id", "messages", "tools"?, "thinking"?, "expect":
// {"content"} or {"tool_calls": [{"name", "arguments"}]}}. Messages and tools are in the form of
// the chat API and are sent as they are.
//
// Errors: kInvalidArgument with file and line. Concurrency: values.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock::evaluate {

struct ExpectedCall {
  std::string name;
  boost::json::value arguments;
};

struct SkillItem {
  std::string skill;
  std::string id;
  boost::json::array messages;
  boost::json::array tools;
  bool thinking = false;
  std::optional<std::string> content;  // exactly one of these two is set
  std::optional<std::vector<ExpectedCall>> tool_calls;
};

// The items of a file's text; `path` is for messages. Blank lines are skipped.
Result<std::vector<SkillItem>> parse_items(std::string_view text, std::string_view path);

// The body of POST /v1/chat/completions for the item: temperature 0, not streamed; max_tokens 0
// leaves it to the server.
std::string request_body(const SkillItem& item, std::string_view model, std::uint32_t max_tokens);

struct Verdict {
  bool right = false;
  std::string got;  // the answer as text, for the report of failures
};

// Judges an answer: content must be equal byte for byte; tool calls must be as many, in order, with
// equal names and equal arguments as JSON values (order of keys and spaces don't matter). kDataLoss
// when it is not a chat completion.
Result<Verdict> judge(const SkillItem& item, std::string_view response_body);

}  // namespace penstock::evaluate
