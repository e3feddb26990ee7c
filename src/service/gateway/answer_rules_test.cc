// What is forced, strict or asked for in JSON, and what an engine gets to hear of it.
#include "service/gateway/answer_rules.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/support/gateway_rig.h"

namespace penstock::gateway {
namespace {

std::string tool(const std::string& name, const std::string& parameters, const char* more = "") {
  return R"({"type":"function","function":{"name":")" + name + R"(","parameters":)" + parameters +
         more + "}}";
}
std::string tools(const std::string& list, const std::string& more = {}) {
  return R"(,"tools":[)" + list + "]" + more;
}
const std::string kGood =
    R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})";
const std::string kUndoable = R"({"type":"object","properties":{"a":{"not":{}}}})";
const std::string kNoSchema = R"({"type":"object","properties":{"a":{"type":"integr"}}})";
const char* kStrict = R"(,"strict":true)";

// The engine ends what it has been given.
void end(Rig& rig) {
  rig.engines.emit({}, FinishReason::kStop);
  rig.clock.run();
}

TEST_CASE("what is forced or strict goes to the engine as a grammar") {
  struct Case {
    std::string extra;
    std::vector<std::string> has;
    std::vector<std::string> lacks;
  };
  const std::string two = tool("f", kGood) + "," + tool("g", kGood);
  const std::vector<Case> cases = {
      {tools(two), {}, {"root"}},
      {tools(two, R"(,"tool_choice":"required")"),
       {"\\\"f\\\"", "\\\"g\\\"", "call+"},
       {"any-body"}},
      {tools(two, R"(,"tool_choice":"required","parallel_tool_calls":false)"),
       {"\\\"f\\\""},
       {"call+"}},
      {tools(two, R"(,"tool_choice":{"type":"function","function":{"name":"g"}})"),
       {"\\\"g\\\""},
       {"\\\"f\\\"", "call+"}},
      {tools(two,
             R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[
          {"type":"function","function":{"name":"f"}}]}})"),
       {"\\\"f\\\""},
       {"\\\"g\\\""}},
      {tools(tool("f", kGood, kStrict) + "," + tool("g", kGood)),
       {"block?", "any-body", "tool0"},
       {}},
      {tools(two, R"(,"tool_choice":"required","response_format":{"type":"json_object"})"),
       {"call+"},
       {}},
      {tools(two, R"(,"response_format":{"type":"json_object"})"),
       {"(%json {\"type\":\"object\"} | ", "any-body", "call+"},
       {"block?"}},
      {tools(two,
             R"(,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" +
                 kGood + "}}"),
       {"(%json " + kGood + " | ", "any-body"},
       {}},
      {tools(two, R"(,"tool_choice":"none","response_format":{"type":"json_object"})"),
       {},
       {"root"}},
      // Nobody asked for more than a grammar can do.
      {tools(tool("f", kUndoable), R"(,"tool_choice":"required")"), {"any-body"}, {"tool0"}},
      {tools(tool("f", kUndoable, kStrict), R"(,"tool_choice":"none")"), {}, {"root"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.extra);
    Rig rig;
    const auto answered = rig.chat(c.extra);
    REQUIRE_MESSAGE(rig.engines.open().size() == 1, answered->body);
    const Constraint constraint = rig.engines.open()[0].request.constraint;
    end(rig);
    for (const std::string& part : c.has)
      CHECK_MESSAGE(contains(constraint.text, part), part << " in " << constraint.text);
    for (const std::string& part : c.lacks)
      CHECK_MESSAGE(!contains(constraint.text, part), part << " in " << constraint.text);
    CHECK_FALSE(constraint.after);
  }
}

TEST_CASE("a schema that can't be kept is refused by its field before anything is sent") {
  struct Case {
    const char* path;
    std::string body;
    const char* field;
  };
  const std::string chat =
      R"({"model":"nano","stream":true,"messages":[{"role":"user","content":"a"}])";
  const std::string responses = R"({"model":"nano","stream":true,"input":"a")";
  const std::string messages =
      R"({"model":"nano","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"a"}])";
  const std::vector<Case> cases = {
      {"/v1/chat/completions",
       chat + tools(tool("f", kGood, kStrict) + "," + tool("g", kUndoable, kStrict)) + "}",
       "tools[1].function.parameters"},
      {"/v1/chat/completions",
       chat + tools(tool("f", kNoSchema), R"(,"tool_choice":"required")") + "}",
       "tools[0].function.parameters"},
      {"/v1/chat/completions",
       chat + tools(tool("f", R"({"type":"string"})"), R"(,"tool_choice":"required")") + "}",
       "tools[0].function.parameters"},
      {"/v1/responses",
       responses + R"(,"tools":[{"type":"web_search"},{"type":"namespace","name":"s","tools":[
         {"type":"function","name":"f","strict":true,"parameters":)" +
           kUndoable + "}]}]}",
       "tools[1].tools[0].parameters"},
      {"/v1/messages",
       messages + R"(,"tools":[{"name":"f","strict":true,"input_schema":)" + kUndoable + "}]}",
       "tools[0].input_schema"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.body);
    Rig rig;
    const auto answered = rig.send("POST", c.path, c.body);
    CHECK(answered->status == 400);
    CHECK_MESSAGE(contains(answered->body, c.field), answered->body);
    CHECK(rig.engines.submitted == 0);
  }
}

TEST_CASE("a format beside tools: what can't be kept is refused, and by whose fault it is") {
  const std::string json = R"(,"response_format":{"type":"json_schema","json_schema":{"name":"n",)";
  const std::pair<std::string, const char*> cases[] = {
      {tools(tool("f", kGood)) + json + R"("schema":)" + kUndoable + "}}", "response_format"},
      {tools(tool("f", kUndoable, kStrict)) + json + R"("schema":)" + kGood + "}}",
       "tools[0].function.parameters"}};
  for (const auto& [extra, field] : cases) {
    Rig rig;
    const auto answered = rig.chat(extra);
    CHECK(answered->status == 400);
    CHECK_MESSAGE(contains(answered->body, field), answered->body);
    CHECK(rig.engines.submitted == 0);
  }
}

TEST_CASE("an answer of JSON or calls is read as what it begins with") {
  const std::string asked = tools(tool("f", kGood), R"(,"response_format":{"type":"json_object"})");
  const std::string call =
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
      "string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  {
    Rig rig;
    const auto answered = rig.chat(asked);
    rig.emit_text("\n\n" + call);  // its end is the answer's
    CHECK_MESSAGE(contains(answered->body, R"("arguments":"{\"a\": 1}")"), answered->body);
    CHECK(contains(answered->body, R"("finish_reason":"tool_calls")"));
  }
  Rig rig;
  const auto answered = rig.chat(asked);
  rig.emit_text(R"({"a": "</think><｜DSML｜tool_calls>"})");
  end(rig);
  CHECK_MESSAGE(
      contains(answered->body, R"("content":"{\"a\": \"</think><｜DSML｜tool_calls>\"}")"),
      answered->body);
  CHECK(contains(answered->body, R"("finish_reason":"stop")"));
}

TEST_CASE("an answer held to a format is its text, whatever that spells") {
  const std::string json = R"(,"response_format":{"type":"json_object"})";
  for (const bool thinks : {false, true}) {
    Rig rig;
    const auto answered =
        rig.chat(json + (thinks ? R"(,"thinking":{"type":"enabled"})" : R"(,"tools":[])"));
    rig.emit_text(std::string(thinks ? "Hm.</think>" : "") +
                  R"({"a": "<think></think><｜DSML｜tool_calls>"})");
    end(rig);
    CHECK_MESSAGE(
        contains(answered->body, R"("content":"{\"a\": \"<think></think><｜DSML｜tool_calls>\"}")"),
        answered->body);
  }
}

TEST_CASE("an engine's complaint about a constraint names what the client sent") {
  Rig rig;
  const auto answered = rig.chat(tools(tool("f", kGood), R"(,"tool_choice":"required")"));
  REQUIRE(rig.engines.submitted == 1);
  rig.engines.fail({ErrorCode::kUnsupported, "it can't", "response_format", {}});
  rig.clock.run();
  CHECK_MESSAGE(contains(answered->body, R"("param":"tool_choice")"), answered->body);
}

TEST_CASE("a shard compiles a tool's schema once") {
  Rig rig;
  for (int i = 0; i < 3; ++i) {
    rig.chat(tools(tool("f", kGood, kStrict)));
    end(rig);
  }
  CHECK(rig.context.checked.misses() == 1);
  CHECK(rig.context.checked.hits() == 2);
}

}  // namespace
}  // namespace penstock::gateway
