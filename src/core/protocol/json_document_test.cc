#include "core/protocol/json_document.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/protocol/json_writer.h"

#include <doctest/doctest.h>

namespace penstock::protocol {
namespace {

using namespace std::string_literals;

std::string quote(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

std::string nested(int depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

}  // namespace

TEST_CASE("values keep their text, key order and number text") {
  const std::string text = R"( {"b": [1, -2.50, 1e2, "x\"\u00e9\ud83d\ude00"], "a": {"k": null}} )";
  const auto document = JsonDocument::parse(text);
  REQUIRE(document.has_value());
  const auto root = document->root();
  CHECK(root.text() == text.substr(1, text.size() - 2));
  const auto list = root.find("b");
  CHECK(list.text() == R"([1, -2.50, 1e2, "x\"\u00e9\ud83d\ude00"])");
  auto item = list.first_child();
  CHECK(item.integer() == 1);
  item = item.next_sibling();
  CHECK(item.number() == -2.5);
  CHECK_FALSE(item.integer().has_value());
  CHECK(item.path() == "b[1]");
  item = item.next_sibling();
  CHECK(item.integer() == 100);
  item = item.next_sibling();
  CHECK(item.string() == "x\"\u00e9\U0001F600");
  CHECK_FALSE(item.next_sibling());
  CHECK(root.find("a").find("k").is_null());
  CHECK(root.find("a").find("k").path() == "a.k");
  CHECK_FALSE(root.find("c"));
  CHECK_FALSE(root.find("a").first_child().next_sibling().next_sibling());
}

TEST_CASE("strings are decoded wherever their escapes stand, and however long what is between") {
  const std::pair<std::string_view, std::string_view> escapes[] = {
      {"\\n", "\n"},
      {"\\\\", "\\"},
      {"\\\"", "\""},
      {"\\/", "/"},
      {"\\b\\f\\r\\t", "\b\f\r\t"},
      {"\\u0041", "A"},
      {"\\u00e9", "\xC3\xA9"},
      {"\\u20ac", "\xE2\x82\xAC"},
      {"\\ud83d\\ude00", "\xF0\x9F\x98\x80"},
      {"\xC3\xA9", "\xC3\xA9"}};
  for (const auto& [escape, meaning] : escapes) {
    for (std::size_t before = 0; before < 40; ++before) {
      for (const std::size_t after : {0, 1, 15, 16, 17, 40}) {
        const std::string head(before, 'a');
        const std::string tail(after, 'b');
        const std::string text = fmt::format("[\"{0}{1}{2}{1}\"]", head, escape, tail);
        const auto document = JsonDocument::parse(text);
        REQUIRE(document.has_value());
        const auto value = document->root().first_child();
        REQUIRE(value.text() == text.substr(1, text.size() - 2));
        REQUIRE(value.string() == fmt::format("{0}{1}{2}{1}", head, meaning, tail));
      }
    }
  }
}

TEST_CASE("bad text is refused with the offset, and the path where there is one") {
  const struct {
    std::string text;
    std::string code;
    std::string field;
    std::string message;
  } cases[] = {
      {"", "invalid_json", "", "byte 0: the body is empty"},
      {"  ", "invalid_json", "", "byte 2"},
      {"{", "invalid_json", "", "byte 1: a key in quotes"},
      {"{\"a\"", "invalid_json", "", "byte 4: a colon"},
      {"{\"a\":", "invalid_json", "", "byte 5: the text ends"},
      {"{\"a\":1,}", "invalid_json", "", "byte 7"},
      {"{a:1}", "invalid_json", "", "byte 1"},
      {"[1 2]", "invalid_json", "", "byte 3: a comma or ]"},
      {"[1,]", "invalid_json", "", "byte 3"},
      {"{} x", "invalid_json", "", "byte 3: unexpected text"},
      {"nul", "invalid_json", "", "byte 0"},
      {"NaN", "invalid_json", "", "byte 0"},
      {"[01]", "invalid_json", "", "malformed number"},
      {"[-]", "invalid_json", "", "malformed number"},
      {"[1.]", "invalid_json", "", "malformed number"},
      {"[1e]", "invalid_json", "", "malformed number"},
      {"[+1]", "invalid_json", "", "byte 1"},
      {"\"a\nb\"", "invalid_json", "", "byte 2: a control character"},
      {"\"\\x\"", "invalid_json", "", "byte 2: malformed escape"},
      {"\"\\u12g4\"", "invalid_json", "", "malformed escape"},
      {"\"abc", "invalid_json", "", "byte 4: the text ends inside a string"},
      {"\"abc\\", "invalid_json", "", "malformed escape"},
      {R"({"a":["\ud800"]})", "invalid_json", "a[0]", "byte 7: a lone surrogate"},
      {R"({"a":["\ude00\ud83d"]})", "invalid_json", "a[0]", "byte 7"},
      {R"({"a":"\ud83d\u0041"})", "invalid_json", "a", "lone surrogate"},
      {R"({"a":{"\ud800":1}})", "invalid_json", "a", "lone surrogate"},
      {"{\"a\":\"\xff\"}", "invalid_json", "", "UTF-8 at byte 6"},
      {"{\"a\":\"\xed\xa0\x80\"}", "invalid_json", "", "UTF-8 at byte 6"},
      {"{\"a\":\"\xc0\x80\"}", "invalid_json", "", "UTF-8 at byte 6"},
      {"{\"a\":\"\xf4\x90\x80\x80\"}", "invalid_json", "", "UTF-8 at byte 6"},
      {"{\"a\":\"\xe2\x82", "invalid_json", "", "UTF-8 at byte 6"},
      {"\xef\xbb\xbf{}", "invalid_json", "", "byte 0"},
      {R"({"a":1,"b":2,"a":3})", "duplicate_key", "a", "byte 13: the key \"a\" stands here twice"},
      {R"({"x":[{"ab":1,"\u0061b":2}]})", "duplicate_key", "x[0].ab", "twice"},
      {R"({"a":1e999})", "invalid_value", "a", "byte 5: the number is too large"},
      {R"({"a":[0,-1E+400]})", "invalid_value", "a[1]", "too large"},
      {"[" + std::string(400, '9') + "]", "invalid_value", "[0]", "too large"},
      {nested(129), "invalid_json", std::string(), "byte 128: nested deeper than 128"},
      {std::string(100'000, '['), "invalid_json", std::string(), "nested deeper"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.text);
    const auto result = JsonDocument::parse(c.text);
    REQUIRE_FALSE(result.has_value());
    const auto& error = result.error();
    CHECK(error.code == ErrorCode::kInvalidArgument);
    CHECK(error.openai_code == c.code);
    CHECK_MESSAGE(error.message.contains(c.message), error.message);
    if (!c.message.contains("nested")) CHECK(error.field == c.field);
  }
}

TEST_CASE("what is odd but valid passes") {
  std::string many = "{";
  for (int i = 0; i < 1000; ++i)
    many += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":0";
  many += "}";
  for (const std::string& text :
       {nested(128), "[1e-999, -0, 0e99999999999999999999, 0.0000e400]"s, many, "\"\\u0000\""s,
        "[18446744073709551616, 1" + std::string(300, '0') + "]", "\"\x7f\""s}) {
    CAPTURE(text);
    CHECK(JsonDocument::parse(text).has_value());
  }
  CHECK(JsonDocument::parse("[1e-999]")->root().first_child().number() == 0.0);
  many.insert(many.size() - 1, ",\"k500\":1");
  CHECK(JsonDocument::parse(many).error().field == "k500");
}

TEST_CASE("the number of values is limited") {
  CHECK(JsonDocument::parse("[1,2,3]", {.values_max = 4}).has_value());
  CHECK(JsonDocument::parse("[1,2,3]", {.values_max = 3}).error().message.contains("values"));
}

TEST_CASE("integers are exact or nothing") {
  const struct {
    const char* text;
    std::optional<std::int64_t> value;
  } cases[] = {{"0", 0},
               {"-0", 0},
               {"9223372036854775807", INT64_MAX},
               {"-9223372036854775808", INT64_MIN},
               {"9223372036854775808", {}},
               {"1180591620717411303424", {}},
               {"5.0", 5},
               {"1e3", 1000},
               {"1.5", {}},
               {"1e300", {}},
               {"1e-400", 0},
               {"\"1\"", {}}};
  for (const auto& c : cases) {
    CAPTURE(c.text);
    const std::string text = c.text;
    CHECK(JsonDocument::parse(text)->root().integer() == c.value);
  }
}

TEST_CASE("written strings are valid whatever comes in") {
  CHECK(quote("a\"b\\c\n\r\t\b\f\x01\x7f/") == R"("a\"b\\c\n\r\t\b\f\u0001\u007f/")");
  CHECK(quote("\u00e9\u20ac\U0001F600") == "\"\u00e9\u20ac\U0001F600\"");
  const std::string r = "\xEF\xBF\xBD";
  CHECK(quote("a\xff"
              "b") == "\"a" + r + "b\"");
  CHECK(quote("\xe2\x82") == "\"" + r + "\"");              // one for a cut character
  CHECK(quote("\xed\xa0\x80") == "\"" + r + r + r + "\"");  // a surrogate is three wrong bytes
  CHECK(quote("\xf0\x9f\x98"
              "A") == "\"" + r + "A\"");
  CHECK(quote("\xc0\xaf") == "\"" + r + r + "\"");
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; b += 3) {
      const std::string two{static_cast<char>(a), static_cast<char>(b), '\x80'};
      const auto text = quote(two);
      CHECK(find_invalid_utf8(text) == std::string_view::npos);
      const auto back = JsonDocument::parse(text);
      REQUIRE(back.has_value());
      std::string valid;
      append_valid_utf8(valid, two);
      CHECK(back->root().string() == valid);
    }
  }
}

TEST_CASE("logprobs are written as the shortest float, and finite") {
  const auto text = [](float value) {
    std::string out;
    append_json_logprob(out, value);
    return out;
  };
  CHECK(text(0.0F) == "0.0");
  CHECK(text(-0.5F) == "-0.5");
  CHECK(text(-3.0F) == "-3.0");
  CHECK(text(-1e-7F) == "-1e-07");
  CHECK(text(-INFINITY) == "-9999.0");
  CHECK(text(NAN) == "-9999.0");
  CHECK(text(-20000.0F) == "-9999.0");
}

}  // namespace penstock::protocol
