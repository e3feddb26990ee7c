#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "evaluate/score.h"
#include "evaluate/skill_items.h"

#include <doctest/doctest.h>

namespace penstock::evaluate {
namespace {

SkillItem item(std::string_view line) {
  auto items = parse_items(line, "x.jsonl");
  REQUIRE_MESSAGE(items, items.error().message);
  REQUIRE(items->size() == 1);
  return items->front();
}

std::string answer(std::string_view message) {
  return R"({"choices":[{"index":0,"message":)" + std::string(message) + "}]}";
}

constexpr std::string_view kText =
    R"({"skill":"add","id":"a1","messages":[{"role":"user","content":"1+1"}],"thinking":true,"expect":{"content":"2"}})";
constexpr std::string_view kCall =
    R"({"skill":"tool","id":"t1","messages":[],"tools":[{"type":"function"}],"expect":{"tool_calls":[{"name":"f","arguments":{"a":1,"b":"x"}}]}})";

}  // namespace

TEST_CASE("items become requests at temperature 0") {
  const auto body = boost::json::parse(request_body(item(kText), "nano", 0));
  CHECK(body.at("model") == "nano");
  CHECK(body.at("temperature") == 0);
  CHECK(body.at("thinking").at("type") == "enabled");
  CHECK(!body.as_object().contains("tools"));
  CHECK(!body.as_object().contains("max_tokens"));
  const auto call = boost::json::parse(request_body(item(kCall), "nano", 7));
  CHECK(call.at("tools").as_array().size() == 1);
  CHECK(call.at("max_tokens") == 7);
  CHECK(call.at("thinking").at("type") == "disabled");
}

TEST_CASE("bad items name the file and the line") {
  struct Case {
    std::string_view text;
    std::string_view message;
  };
  for (const auto& c : {
           Case{"{}", "x.jsonl:1: \"skill\" must be a string"},
           Case{"\n[1]", "x.jsonl:2: not a JSON object"},
           Case{R"({"skill":"s","id":"i","messages":{}})", "\"messages\" must be a list"},
           Case{R"({"skill":"s","id":"i","messages":[]})", "\"expect\" must be an object"},
           Case{R"({"skill":"s","id":"i","messages":[],"expect":{}})", "needs \"content\" or"},
           Case{R"({"skill":"s","id":"i","messages":[],"thinking":1,"expect":{}})", "\"thinking\""},
           Case{R"({"skill":"s","id":"i","messages":[],"expect":{"tool_calls":[{"name":"f"}]}})",
                "needs \"name\" and \"arguments\""},
       }) {
    const auto items = parse_items(c.text, "x.jsonl");
    REQUIRE(!items);
    CHECK_MESSAGE(items.error().message.find(c.message) != std::string::npos,
                  items.error().message);
  }
  CHECK(parse_items(" \n\n", "x.jsonl")->empty());
}

TEST_CASE("content is judged byte for byte") {
  const auto asked = item(kText);
  CHECK(judge(asked, answer(R"({"role":"assistant","content":"2"})"))->right);
  CHECK(judge(asked, answer(R"({"content":"2","reasoning_content":"1+1=2"})"))->right);
  for (const auto* wrong : {R"({"content":"2 "})", R"({"content":"3"})", R"({"content":null})",
                            "{}", R"({"content":"2","tool_calls":[{"function":{}}]})"})
    CHECK_MESSAGE(!judge(asked, answer(wrong))->right, wrong);
  for (const auto* broken :
       {"", "{}", R"({"choices":[]})", R"({"choices":[1]})", R"({"error":{}})"})
    CHECK_MESSAGE(judge(asked, broken).error().code == ErrorCode::kDataLoss, broken);
}

TEST_CASE("tool calls are judged as values") {
  const auto asked = item(kCall);
  const auto calls = [](std::string_view arguments, std::string_view name = "f") {
    boost::json::object function{{"name", name}, {"arguments", arguments}};
    return answer(boost::json::serialize(boost::json::object{
        {"content", nullptr},
        {"tool_calls", boost::json::array{boost::json::object{{"function", function}}}}}));
  };
  CHECK(judge(asked, calls(R"({"b": "x", "a": 1})"))->right);
  for (const auto* wrong :
       {R"({"a":1})", R"({"a":"1","b":"x"})", "not json", "", R"({"a":1,"b":"x","c":0})"})
    CHECK_MESSAGE(!judge(asked, calls(wrong))->right, wrong);
  CHECK(!judge(asked, calls(R"({"a":1,"b":"x"})", "g"))->right);
  CHECK(!judge(asked, answer(R"({"content":"f"})"))->right);
}

TEST_CASE("Wilson's interval") {
  const auto near = [](double a, double b) { return a - b < 1e-4 && b - a < 1e-4; };
  const auto all = wilson_interval(100, 100);
  CHECK(near(all.low, 0.9630));
  CHECK(all.high == 1.0);
  const auto none = wilson_interval(0, 10);
  CHECK(none.low == 0.0);
  CHECK(near(none.high, 0.2775));
  const auto half = wilson_interval(50, 100);
  CHECK(near(half.low, 0.4038));
  CHECK(near(half.high, 0.5962));
  CHECK(wilson_interval(0, 0).high == 1.0);
  CHECK(Score{}.accuracy() == 0);
}

}  // namespace penstock::evaluate
