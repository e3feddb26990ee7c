#include "core/protocol/responses_request.h"

#include <fmt/format.h>

#include <string>

#include "core/protocol/chat_dump.h"
#include "tests/support/cases.h"

#include <doctest/doctest.h>

namespace penstock::protocol {
namespace {

// Not a cipher: shows in the cases what was opened, and for what.
const Seal kSeal{
    [](std::string_view purpose, std::string_view text) {
      return fmt::format("{}/{}", purpose, text);
    },
    [](std::string_view purpose, std::string_view sealed) -> std::optional<std::string> {
      const auto head = fmt::format("{}/", purpose);
      if (!sealed.starts_with(head)) return std::nullopt;
      return std::string(sealed.substr(head.size()));
    }};

std::string dump_all(const ResponsesRequest& r) {
  std::string out = dump(r.chat);
  Dump more;
  more.text("previous", r.previous_response_id);
  for (const auto& id : r.references)
    more.text("refers to", id);
  more.line("store", r.store, true);
  more.line("background", r.background, false);
  more.line("encrypted_reasoning", r.encrypted_reasoning, false);
  for (const auto& [flat, function] : r.spaces)
    more.text("space " + flat, function.space + " " + function.name);
  return out + more.take();
}

std::string run(const std::string& body) {
  const auto request = parse_responses_request(body, kSeal);
  return request ? dump_all(*request) : dump(request.error());
}

// A line of stored items "[...]", then lines `id item`, then the body.
std::string run_with_stored(const std::string& input) {
  StoredContext context;
  std::string body;
  for (const auto& line : test::split_at_lines(input, "--")) {
    if (line.starts_with('[')) {
      context.items.push_back(line);
    } else if (line.starts_with('{')) {
      body = line;
    } else {
      const auto space = line.find(' ');
      context.known[line.substr(0, space)] = line.substr(space + 1);
    }
  }
  auto request = parse_responses_request(body, kSeal);
  if (!request) return dump(request.error());
  const auto document = JsonDocument::parse(body);
  REQUIRE(document);
  const auto done = complete_conversation(*request, document->root(), kSeal, context);
  if (!done) return dump(done.error());
  const auto stored = stored_input(document->root(), "N", context.known);
  return dump_all(*request) + "stored: " + stored + "\n";
}

std::string with(std::string_view member) {
  return fmt::format(R"({{"model":"m","input":"x",{}}})", member);
}

}  // namespace

TEST_CASE("responses requests as text cases") {
  for (const char* file : {"responses_items.txt", "responses_options.txt", "responses_errors.txt"})
    test::run_cases(std::string("protocol/") + file, run);
  test::run_cases("protocol/responses_stored.txt", run_with_stored);
  test::run_cases("protocol/responses_echo.txt", [](const std::string& body) {
    const auto request = parse_responses_request(body, kSeal);
    return request ? request->echo : dump(request.error());
  });
}

TEST_CASE("a conversation gives the same request in either API") {
  const auto chat = parse_chat_request(R"({"model":"m","messages":[
    {"role":"system","content":"be brief"},{"role":"user","content":"weather?"},
    {"role":"assistant","reasoning_content":"look it up","content":"I look.","tool_calls":[
      {"id":"c1","type":"function","function":{"name":"w","arguments":"{\"at\":\"Oslo\"}"}},
      {"id":"c2","type":"function","function":{"name":"w","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"c1","content":"rain"},
    {"role":"tool","tool_call_id":"c2","content":"sun"},
    {"role":"assistant","content":"Rain."},{"role":"user","content":"thanks"}],
    "tools":[{"type":"function","function":{"name":"w","description":"d","parameters":{"type":"object"}}}],
    "max_completion_tokens":20,"reasoning_effort":"low","user":"u"})");
  const auto responses = parse_responses_request(R"({"model":"m","instructions":"be brief","input":[
    {"role":"user","content":"weather?"},
    {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"look it up"}]},
    {"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look.","annotations":[]}]},
    {"type":"function_call","call_id":"c1","name":"w","arguments":"{\"at\":\"Oslo\"}"},
    {"type":"function_call","call_id":"c2","name":"w","arguments":"{}"},
    {"type":"function_call_output","call_id":"c1","output":"rain"},
    {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"sun"}]},
    {"role":"assistant","content":"Rain."},{"role":"user","content":"thanks"}],
    "tools":[{"type":"function","name":"w","description":"d","parameters":{"type":"object"}}],
    "max_output_tokens":20,"reasoning":{"effort":"low"},"user":"u"})",
                                                 kSeal);
  REQUIRE(chat);
  REQUIRE(responses);
  CHECK(dump(*chat) == dump(responses->chat));
}

TEST_CASE("every field refuses every wrong type, and takes null as absent") {
  const struct {
    const char* name;
    const char* good;
  } fields[] = {{"instructions", "\"a\""},
                {"temperature", "1"},
                {"top_p", "1"},
                {"presence_penalty", "1"},
                {"frequency_penalty", "1"},
                {"top_logprobs", "0"},
                {"max_output_tokens", "100"},
                {"max_tool_calls", "1"},
                {"seed", "1"},
                {"stream", "true"},
                {"stream_options", "{}"},
                {"store", "true"},
                {"background", "true"},
                {"parallel_tool_calls", "true"},
                {"previous_response_id", "\"resp_1\""},
                {"tools", "[]"},
                {"tool_choice", "\"auto\""},
                {"include", "[]"},
                {"text", "{}"},
                {"reasoning", "{}"},
                {"truncation", "\"disabled\""},
                {"metadata", "{}"},
                {"user", "\"u\""},
                {"safety_identifier", "\"u\""},
                {"prompt_cache_key", "\"u\""},
                {"service_tier", "\"auto\""}};
  const auto kind_of = [](const std::string& text) {
    return text == "true" ? 'b' : text[0] == '1' || text[0] == '0' ? 'n' : text[0];
  };
  for (const auto& field : fields) {
    const auto body = [&](const std::string& value) {
      return with(fmt::format("\"{}\":{}", field.name, value));
    };
    CAPTURE(field.name);
    CHECK_MESSAGE(parse_responses_request(body(field.good), kSeal).has_value(),
                  run(body(field.good)));
    CHECK(parse_responses_request(body("null"), kSeal).has_value());
    for (const std::string wrong : {"true", "1", "\"zzz\"", "[1]", "{\"zzz\":1}"}) {
      CAPTURE(wrong);
      if (kind_of(wrong) == kind_of(field.good)) continue;
      if (field.name == std::string_view("tool_choice") && wrong[0] == '{') continue;
      const auto result = parse_responses_request(body(wrong), kSeal);
      REQUIRE_FALSE(result.has_value());
      CHECK(result.error().field == field.name);
      CHECK(result.error().openai_code == "invalid_type");
    }
  }
}

TEST_CASE("what is repeated stands on one line, strings as they were") {
  const auto request = parse_responses_request(
      "{\"model\":\"m\",\n\"input\":\"x\",\"tools\":[ {\n\t\"type\" : "
      "\"function\",\r\n\"name\":\"f\","
      "\"description\":\"a \\\" b\\\\\" , \"parameters\":{ \"a\" : [ 1 , 2 ] }}]}",
      kSeal);
  REQUIRE(request);
  CHECK(request->echo.find('\n') == std::string::npos);
  CHECK(
      request->echo.find(R"([{"type":"function","name":"f","description":"a \" b\\","parameters":)"
                         R"({"a":[1,2]},"strict":null}])") != std::string::npos);
  CHECK(request->chat.conversation.tools[0].schema.find("[ 1 , 2 ]") != std::string::npos);
}

TEST_CASE("every truncation of a request is an error with a message, never a crash") {
  const std::string body =
      R"({"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"\u00e9"}]},
      {"type":"function_call","call_id":"c","name":"f","arguments":"{}"}],
      "tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}]})";
  for (std::size_t n = 0; n < body.size(); ++n) {
    const auto result = parse_responses_request(std::string_view(body).substr(0, n), kSeal);
    REQUIRE_FALSE(result.has_value());
    CHECK_FALSE(result.error().message.empty());
  }
  CHECK(parse_responses_request(body, kSeal));
}

}  // namespace penstock::protocol
