#include "core/protocol/messages_request.h"

#include <fmt/format.h>

#include <string>

#include "core/protocol/chat_dump.h"
#include "tests/support/cases.h"

#include <doctest/doctest.h>

namespace penstock::protocol {
namespace {

std::string run(const std::string& body) {
  const auto request = parse_messages_request(body, MessagesCall::kAnswer);
  if (!request) return dump(request.error());
  CHECK(request->fit_max_tokens);
  return dump(*request);
}

std::string with(std::string_view member) {
  return fmt::format(
      R"({{"model":"m","max_tokens":9,"messages":[{{"role":"user","content":"x"}}],{}}})", member);
}

}  // namespace

TEST_CASE("messages requests as text cases") {
  for (const char* file : {"messages_turns.txt", "messages_tools.txt", "messages_options.txt"})
    test::run_cases(std::string("protocol/") + file, run);
}

TEST_CASE("every field refuses every wrong type and names itself") {
  const std::string fields[] = {
      "system", "tools",  "tool_choice", "stop_sequences", "thinking",      "temperature", "top_p",
      "top_k",  "stream", "metadata",    "service_tier",   "output_config", "mcp_servers"};
  for (const auto& field : fields) {
    CAPTURE(field);
    for (const std::string_view value : {"{\"a\":[]}", "[7]", "\"text\"", "true", "3.5", "-1e30"}) {
      CAPTURE(value);
      const auto request = parse_messages_request(with(fmt::format("\"{}\":{}", field, value)),
                                                  MessagesCall::kAnswer);
      const bool fits =
          (value == "\"text\"" && field == "system") || (value == "true" && field == "stream") ||
          (value == "{\"a\":[]}" && (field == "metadata" || field == "output_config"));
      CHECK(request.has_value() == fits);
      if (!request) CHECK(request.error().field.starts_with(field));
    }
    CHECK(parse_messages_request(with(fmt::format("\"{}\":null", field)), MessagesCall::kAnswer));
  }
}

TEST_CASE("blocks that are not supported are refused by name, wherever they stand") {
  for (const std::string_view type :
       {"document", "search_result", "server_tool_use", "web_search_tool_result",
        "container_upload", "mcp_tool_use"}) {
    const auto block = fmt::format(R"({{"type":"{}","source":{{}}}})", type);
    for (const auto& [content, field] :
         {std::pair{fmt::format(R"({{"role":"user","content":[{}]}})", block),
                    "messages[0].content[0].type"},
          std::pair{fmt::format(R"({{"role":"assistant","content":[{}]}})", block),
                    "messages[0].content[0].type"}}) {
      const auto request = parse_messages_request(
          fmt::format(R"({{"model":"m","max_tokens":9,"messages":[{}]}})", content),
          MessagesCall::kAnswer);
      REQUIRE(!request);
      CHECK(request.error().code == ErrorCode::kUnsupported);
      CHECK(request.error().field == field);
      CHECK(request.error().message.contains(type));
    }
  }
}

TEST_CASE("counting needs no max_tokens; answering does") {
  const std::string body = R"({"model":"m","messages":[{"role":"user","content":"x"}],
                               "thinking":{"type":"enabled","budget_tokens":5000}})";
  CHECK(parse_messages_request(body, MessagesCall::kCountTokens));
  const auto answer = parse_messages_request(body, MessagesCall::kAnswer);
  REQUIRE(!answer);
  CHECK(answer.error().field == "max_tokens");
}

TEST_CASE("a tool reads the same as through Chat Completions") {
  const auto messages = parse_messages_request(
      with(R"("tools":[{"input_schema":{"z":1.50,"a":{ }},"description":"d","name":"f"}])"),
      MessagesCall::kAnswer);
  const auto chat = parse_chat_request(
      R"({"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function",
          "function":{"name":"f","description":"d","parameters":{"z":1.50,"a":{ }}}}]})");
  REQUIRE(messages);
  REQUIRE(chat);
  REQUIRE(messages->conversation.tools.size() == chat->conversation.tools.size());
  for (std::size_t i = 0; i < chat->conversation.tools.size(); ++i) {
    CHECK(messages->conversation.tools[i].name == chat->conversation.tools[i].name);
    CHECK(messages->conversation.tools[i].schema == chat->conversation.tools[i].schema);
  }
}

}  // namespace penstock::protocol
