#include "core/dialects/json_body.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace penstock::dialects {
namespace {

using namespace std::string_view_literals;

constexpr std::array kNames = {"model"sv, "stream"sv, "kv"sv, "min_tokens"sv};

std::string edit(std::string_view body, const std::vector<Edit>& edits) {
  const auto read = JsonBody::read(body, kNames);
  REQUIRE_MESSAGE(read.has_value(), body);
  return read->edited(edits);
}

std::string refused(std::string_view body) {
  const auto read = JsonBody::read(body, kNames);
  return read ? "accepted" : read.error().openai_code;
}

}  // namespace

TEST_CASE("JsonBody: nothing edited is nothing changed") {
  for (const auto body :
       {R"({})"sv, " {\t}\n"sv, R"({"a":1e400,"b":[{}, [] ,"\u00e9\\"], "a":2})"sv,
        R"({ "seed" : 12345678901234567890 , "x":-0.0, "y": 1.10 })"sv}) {
    CHECK(edit(body, {}) == body);
  }
}

TEST_CASE("JsonBody: members are set, replaced and removed at their position") {
  struct Row {
    std::string_view before;
    std::vector<Edit> edits;
    std::string_view after;
  };
  const std::vector<Row> rows = {
      {R"({"model":"a","n":1.0})", {{"model", R"("b")"}}, R"({"model":"b","n":1.0})"},
      {R"({ "z":1, "model" : "a" ,"n":1})", {{"model", "7"}}, R"({ "z":1, "model" : 7 ,"n":1})"},
      {R"({"mod\u0065l":"a"})", {{"model", R"("b")"}}, R"({"mod\u0065l":"b"})"},
      {R"({"n":1})", {{"kv", "{}"}}, R"({"n":1,"kv":{}})"},
      {R"({"n":1 })", {{"kv", "{}"}, {"stream", "false"}}, R"({"n":1,"kv":{},"stream":false })"},
      {R"({})", {{"kv", "1"}, {"model", "2"}}, R"({"kv":1,"model":2})"},
      {R"({ })", {{"kv", "1"}}, R"({"kv":1 })"},
      {R"({"model":1})", {{"model", std::nullopt}}, R"({})"},
      {R"({"model":1, "n":2})", {{"model", std::nullopt}}, R"({"n":2})"},
      {R"({"n":2, "model":1})", {{"model", std::nullopt}}, R"({"n":2})"},
      {R"({"n":2 , "model":1 , "m":3})", {{"model", std::nullopt}}, R"({"n":2 , "m":3})"},
      {R"({"model":1,"kv":2,"n":3})",
       {{"kv", std::nullopt}, {"model", std::nullopt}},
       R"({"n":3})"},
      {R"({"model":1,"n":3,"kv":2})",
       {{"kv", std::nullopt}, {"model", std::nullopt}},
       R"({"n":3})"},
      {R"({"model":1,"kv":2})", {{"kv", std::nullopt}, {"model", std::nullopt}}, R"({})"},
      {R"({"model":1})", {{"model", std::nullopt}, {"kv", "2"}}, R"({"kv":2})"},
      {R"({"n":1,"model":1})", {{"model", std::nullopt}, {"kv", "2"}}, R"({"n":1,"kv":2})"},
      {R"({"model":1,"n":1})", {{"model", std::nullopt}, {"kv", "2"}}, R"({"n":1,"kv":2})"},
      {R"({"model":1,"kv":1,"stream":true})",
       {{"model", std::nullopt}, {"kv", "2"}, {"stream", std::nullopt}},
       R"({"kv":2})"},
      {R"({"n":1})", {{"model", std::nullopt}}, R"({"n":1})"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.before);
    CHECK(edit(row.before, row.edits) == row.after);
  }
}

TEST_CASE("JsonBody: nothing in a string or a nested value is a key") {
  constexpr auto kBody =
      R"({"messages":[{"content":"\"model\":\"x\",{\\","model":"inner"}],"a":"\\\"model\\\":1","model":"m"})"sv;
  const auto body = JsonBody::read(kBody, kNames);
  REQUIRE(body.has_value());
  CHECK(body->string("model") == "m");
  CHECK(
      edit(kBody, {{"model", "1"}}) ==
      R"({"messages":[{"content":"\"model\":\"x\",{\\","model":"inner"}],"a":"\\\"model\\\":1","model":1})");
}

TEST_CASE("JsonBody: values as they stand") {
  const auto body = JsonBody::read(
      R"({"model":"\u0041\n\ud83d\ude00\ud800","stream": true ,"kv":{"a": [1]},"min_tokens":12345678901234567890})",
      kNames);
  REQUIRE(body.has_value());
  CHECK(body->string("model") == "A\n\xF0\x9F\x98\x80\xEF\xBF\xBD");
  CHECK(body->is_true("stream"));
  CHECK(body->value("kv") == R"({"a": [1]})");
  CHECK(body->value("min_tokens") == "12345678901234567890");
  CHECK_FALSE(body->string("kv").has_value());
  CHECK_FALSE(body->value("other").has_value());
}

TEST_CASE(
    "JsonBody: duplicates of controlled keys, in any spelling, and broken bodies are refused") {
  CHECK(refused(R"({"model":1,"model":1})") == "duplicate_key");
  CHECK(refused(R"({"model":1,"n":{},"\u006dodel":2})") == "duplicate_key");
  CHECK(refused(R"({"n":1,"n":2,"a":{"model":1,"model":2}})") == "accepted");
  for (const auto body : {""sv,
                          "[]"sv,
                          "{"sv,
                          "}"sv,
                          R"({"a")"sv,
                          R"({"a":})"sv,
                          R"({"a":1,})"sv,
                          R"({,"a":1})"sv,
                          R"({"a":1 "b":2})"sv,
                          R"({"a":[1,]})"sv,
                          R"({"a":[1}})"sv,
                          R"({"a":{"b"}})"sv,
                          R"({"a":"x)"sv,
                          R"({"a":"x\"})"sv,
                          R"({"a":1}x)"sv,
                          R"({"a":1}{"model":2})"sv,
                          R"({a:1})"sv,
                          R"({'a':1})"sv,
                          R"({"a":1/*"model":2*/})"sv,
                          R"({"\x":1})"sv,
                          R"({"\u12":1})"sv,
                          "{\"a\":1\0}"sv,
                          "\xEF\xBB\xBF{}"sv,
                          "{\0\"\0a\0\"\0:\0001\0}\0"sv,
                          R"("model")"sv,
                          "null"sv,
                          R"({"a":[)"sv,
                          R"({"a":{)"sv,
                          R"({"a":[1 2]})"sv}) {
    CAPTURE(body);
    CHECK(refused(body) == "invalid_json");
  }
  CHECK(refused(std::string(R"({"a":)") + std::string(600, '[') + std::string(600, ']') + "}") ==
        "invalid_json");
  CHECK(refused(std::string(R"({"a":)") + std::string(500, '[') + std::string(500, ']') + "}") ==
        "accepted");
}

TEST_CASE("JsonBody: an edit moves no other byte, wherever the member stands") {
  const std::vector<std::string> others = {R"("seed":9007199254740993)", R"( "f" : 1.50e+02 )",
                                           R"("t":"\/\u00e9 \"model\":")", R"("o":{"model":[]})"};
  for (std::size_t place = 0; place <= others.size(); ++place) {
    std::string before;
    std::string after = "{";
    std::string body = "{";
    for (std::size_t i = 0; i <= others.size(); ++i) {
      const auto join = [&](std::string& to, std::string_view text) {
        if (to.size() > 1) to += ',';
        to += text;
      };
      if (i == place) {
        join(body, R"("model":"alias")");
        join(after, R"("model":"real")");
      }
      if (i < others.size()) {
        join(body, others[i]);
        join(after, others[i]);
      }
    }
    CHECK(edit(body + "}", {{"model", R"("real")"}}) == after + "}");
  }
}

TEST_CASE("body: an edit copies nothing of the text") {
  constexpr std::array<std::string_view, 2> keys = {"model", "stream"};
  const std::string text = R"({"model":"a","messages":[1,2],"x":3})";
  const auto body = JsonBody::read(text, keys);
  REQUIRE(body.has_value());
  const EditedBody same = body->edit({});
  REQUIRE(same.pieces.size() == 1);
  CHECK(same.pieces[0].data() == text.data());
  CHECK(same.size == text.size());
  const std::array edits = {Edit{"stream", "true"}, Edit{"model", "\"long enough to move\""}};
  EditedBody first = body->edit(edits);
  const EditedBody edited = std::move(first);
  CHECK(edited.text() == R"({"model":"long enough to move","messages":[1,2],"x":3,"stream":true})");
  CHECK(edited.size == edited.text().size());
  const auto in_text = [&](std::string_view piece) {
    return piece.data() >= text.data() && piece.data() < text.data() + text.size();
  };
  CHECK(std::ranges::count_if(edited.pieces, in_text) == 3);
}

}  // namespace penstock::dialects
