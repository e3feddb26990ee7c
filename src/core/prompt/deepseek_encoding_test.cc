#include "core/prompt/deepseek_encoding.h"

#include <string>

#include <doctest/doctest.h>

#include "core/prompt/json_fields.h"
#include "core/prompt/json_spacing.h"

namespace penstock::prompt {
namespace {

// Specials in guillemets, so a test shows which text became a token.
std::string show(const Result<std::vector<PromptSpan>>& spans) {
  if (!spans) return to_string(spans.error());
  std::string out;
  for (const PromptSpan& span : *spans) {
    out += span.kind == SpanKind::kSpecial ? "«" + span.text + "»" : span.text;
  }
  return out;
}

Message message(Role role, std::string text) {
  Message m;
  m.role = role;
  m.text = std::move(text);
  return m;
}

}  // namespace

TEST_CASE("V4 chat turns") {
  const auto v4 = make_deepseek_v4();
  Conversation c;
  c.messages = {message(Role::kSystem, "Be brief."), message(Role::kUser, "Hi <｜User｜>"),
                message(Role::kAssistant, "Hello."), message(Role::kUser, "More")};
  CHECK(
      show(v4->render(c)) ==
      "«<｜begin▁of▁sentence｜>»Be brief.«<｜User｜>»Hi <｜User｜>«<｜Assistant｜>»«</think>»Hello."
      "«<｜end▁of▁sentence｜>»«<｜User｜>»More«<｜Assistant｜>»«</think>»");
  c.thinking = Thinking::kEnabled;
  c.messages[2].reasoning = "old";
  CHECK(
      show(v4->render(c)) ==
      "«<｜begin▁of▁sentence｜>»Be brief.«<｜User｜>»Hi <｜User｜>«<｜Assistant｜>»«</think>»Hello."
      "«<｜end▁of▁sentence｜>»«<｜User｜>»More«<｜Assistant｜>»«<think>»");
}

TEST_CASE("V4 tools, calls and results in call order") {
  const auto v4 = make_deepseek_v4();
  Conversation c;
  c.tools = {{"f", R"({"name":"f","parameters":{"a":1.50,"b":["\u00e9"]}})"}};
  Message call = message(Role::kAssistant, "Looking.");
  call.tool_calls = {{"1", "f", R"({"city":"O\"s","n":[1,2]})"}, {"2", "f", "{}"}};
  Message first = message(Role::kTool, "r1");
  first.tool_call_id = "1";
  Message second = message(Role::kTool, "r2");
  second.tool_call_id = "2";
  c.messages = {message(Role::kUser, "Q"), call, second, first, message(Role::kUser, "and?")};
  const std::string text = show(v4->render(c));
  CHECK(text.starts_with("«<｜begin▁of▁sentence｜>»\n\n## Tools\n\nYou have access"));
  CHECK(text.find(
            "\n\n{\"name\": \"f\", \"parameters\": {\"a\": 1.50, \"b\": [\"é\"]}}\n\nYou MUST") !=
        std::string::npos);
  CHECK(text.find("to invoke tool calls.\n«<｜User｜>»Q«<｜Assistant｜>»«</think>»Looking.\n\n"
                  "<«｜DSML｜»tool_calls>\n<«｜DSML｜»invoke name=\"f\">\n"
                  "<«｜DSML｜»parameter name=\"city\" string=\"true\">O\"s</«｜DSML｜»parameter>\n"
                  "<«｜DSML｜»parameter name=\"n\" string=\"false\">[1, 2]</«｜DSML｜»parameter>\n"
                  "</«｜DSML｜»invoke>\n<«｜DSML｜»invoke name=\"f\">\n\n</«｜DSML｜»invoke>\n"
                  "</«｜DSML｜»tool_calls>«<｜end▁of▁sentence｜>»") != std::string::npos);
  CHECK(
      text.ends_with("«<｜User｜>»<tool_result>r1</tool_result>\n\n<tool_result>r2</tool_result>"
                     "\n\nand?«<｜Assistant｜>»«</think>»"));
  c.messages[2].tool_call_id = "nope";
  const auto bad = v4->render(c);
  REQUIRE(!bad);
  CHECK(bad.error().field == "messages[2].tool_call_id");
}

TEST_CASE("prefix completion leaves the last answer open") {
  Conversation c;
  c.messages = {message(Role::kUser, "Q"), message(Role::kAssistant, "The answer")};
  c.continue_last_assistant = true;
  CHECK(show(make_deepseek_v4()->render(c)).ends_with("«<｜Assistant｜>»«</think>»The answer"));
  CHECK(show(make_deepseek_v3()->render(c)).ends_with("«<｜Assistant｜>»The answer"));
}

TEST_CASE("bad conversations are named") {
  Conversation c;
  CHECK(make_deepseek_v4()->render(c).error().field == "messages");
  c.messages = {message(Role::kTool, "x")};
  CHECK(make_deepseek_v3()->render(c).error().code == ErrorCode::kUnsupported);
  c.tools = {{"f", "{"}};
  c.messages = {message(Role::kUser, "x")};
  CHECK(make_deepseek_v4()->render(c).error().field == "tools[0].function");
}

TEST_CASE("a call's arguments keep the text of their numbers, and the last of equal names") {
  const auto fields =
      json_fields(R"( {"n":1.5,"deep":{"a":[0.25,-0,1e3,"x, y"]},"s":"a\"b, c","n":2.50,"e":{}} )");
  REQUIRE(fields);
  std::string shown;
  for (const JsonField& field : *fields)
    shown += field.name + (field.is_string ? "=" : ":") + field.value + ";";
  CHECK(shown == R"(n:2.50;deep:{"a": [0.25, -0, 1e3, "x, y"]};s=a"b, c;e:{};)");
  CHECK(json_fields("{}")->empty());
  for (const char* bad : {"", "[]", "1", "{\"a\":01}", "{\"a\":1,}", "{} {}"}) {
    CAPTURE(bad);
    CHECK(!json_fields(bad));
  }
}

TEST_CASE("Python spacing") {
  CHECK(*python_style("{ \"a\":[1,2 ,\n3],\"b\\u00e9\\/\\n\\ud83d\\ude00\":-1.0e+5}") ==
        "{\"a\": [1, 2, 3], \"bé/\\n😀\": -1.0e+5}");
  for (const char* bad : {"{", "]", "\"a", "\"\\x\"", "\"\\ud800\"", "{]"}) {
    CAPTURE(bad);
    CHECK(!python_style(bad));
  }
}

}  // namespace penstock::prompt
