// The client's side of a chat: events, history, commands.
#include <boost/json/serialize.hpp>

#include "app/api_client.h"
#include "app/chat_session.h"
#include "app/console.h"
#include "io/files/files.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

ChatSession session() {
  ChatSession s;
  s.model = "nano";
  s.system = "Be brief.";
  s.history = {{"user", "hi"}, {"assistant", "Hello!"}};
  return s;
}

}  // namespace

TEST_CASE("events of a stream") {
  const auto text =
      parse_delta(R"({"choices":[{"delta":{"content":"Hel"},"finish_reason":null}]})");
  REQUIRE(text);
  CHECK(text->content == "Hel");
  CHECK(text->finish_reason.empty());
  const auto thought = parse_delta(R"({"choices":[{"delta":{"reasoning_content":"hm"}}]})");
  CHECK(thought->reasoning == "hm");
  const auto end = parse_delta(R"({"choices":[{"delta":{},"finish_reason":"length"}]})");
  CHECK(end->finish_reason == "length");
  const auto usage = parse_delta(R"({"choices":[],"usage":{"completion_tokens":3}})");
  CHECK(usage->usage.at("completion_tokens") == 3);
  const auto error = parse_delta(R"({"error":{"message":"worker lost","code":"unavailable"}})");
  REQUIRE(!error);
  CHECK(has(error.error().message, "worker lost"));
  for (const auto* bad : {"", "[]", "{}", "{", R"({"choices":1})"})
    CHECK_MESSAGE(parse_delta(bad).error().code == ErrorCode::kDataLoss, bad);
  CHECK(parse_delta(R"({"choices":[1]})"));
  CHECK(parse_delta(R"({"choices":[{"delta":1}]})"));
}

TEST_CASE("a session's request holds the system prompt and the history") {
  auto s = session();
  s.temperature = 0;
  CHECK(
      boost::json::serialize(s.request()) ==
      R"({"model":"nano","messages":[{"role":"system","content":"Be brief."},)"
      R"({"role":"user","content":"hi"},{"role":"assistant","content":"Hello!"}],"temperature":0E0})");
  s.max_tokens = 5;
  CHECK(s.request().at("max_tokens") == 5);
}

TEST_CASE("commands of a conversation") {
  auto s = session();
  const std::vector<std::string> models = {"nano", "big"};
  CHECK(!is_slash_command("hi /x"));
  CHECK(run_slash_command("/quit", s, models)->quit);
  CHECK(has(run_slash_command("/help", s, models)->say, "/reset"));
  CHECK(run_slash_command("/model big", s, models));
  CHECK(s.model == "big");
  CHECK(has(run_slash_command("/model", s, models)->say, "nano, big"));
  CHECK(has(run_slash_command("/model bgi", s, models).error().message, "did you mean big?"));
  CHECK(has(run_slash_command("/rset", s, models).error().message, "did you mean /reset?"));
  CHECK(s.history.size() == 2);
  CHECK(run_slash_command("/reset", s, models));
  CHECK(s.history.empty());
  CHECK(s.system == "Be brief.");
  CHECK(run_slash_command("/system  Speak like a poet. ", s, models));
  CHECK(s.system == "Speak like a poet.");
  CHECK(run_slash_command("/system", s, models));
  CHECK(s.system.empty());
}

TEST_CASE("a conversation is saved as JSON") {
  const auto folder = TemporaryDirectory::make("penstock-chat").value();
  auto s = session();
  const std::string path = folder.path() + "/c.json";
  REQUIRE(run_slash_command("/save " + path, s, {}));
  CHECK(has(read_file(path, Bytes(10'000)).value(), "\"content\": \"Hello!\""));
  CHECK(!run_slash_command("/save", s, {}));
  CHECK(!run_slash_command("/save " + folder.path() + "/no/such", s, {}));
}

TEST_CASE("an answer cannot drive the terminal") {
  CHECK(terminal_text("a\x1b[2Jb\x07\rc\n\td\x7F") == "a[2Jbc\n\td");
  CHECK(terminal_text("x\xC2\x9By\xC2\xA0z \xC3\xA9") == "xy\xC2\xA0z \xC3\xA9");
  CHECK(terminal_text("\xC2") == "\xC2");
}

TEST_CASE("JSON for people") {
  CHECK(
      pretty_json(R"({"a":[1,{"b":null}],"c":{},"d":[]})") ==
      "{\n  \"a\": [\n    1,\n    {\n      \"b\": null\n    }\n  ],\n  \"c\": {},\n  \"d\": []\n}");
  CHECK(pretty_json("not json") == "not json");
}

}  // namespace penstock
