// Which documents a schema's grammar takes, which schemas are refused, and with what words.
#include "core/grammar/json_schema.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/grammar/matcher.h"

namespace penstock::grammar {
namespace {

bool takes(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Matcher matcher(grammar);
  return matcher.advance(text) && matcher.complete();
}

std::shared_ptr<const Grammar> compiled(std::string_view schema) {
  auto grammar = json_schema_grammar(schema);
  INFO(schema);
  if (!grammar) FAIL(to_string(grammar.error()));
  return *grammar;
}

struct Case {
  const char* schema;
  std::vector<const char*> good;
  std::vector<const char*> bad;
};

TEST_CASE("a schema's grammar takes its instances in declared order and nothing else") {
  const std::vector<Case> cases{
      {R"({})",
       {"1", "-0.5e+10", R"("a\ud83d\ude00\u00e4")", "[]", "[1, [2,\n  {}]]",
        R"({"a": 1,"b":null})"},
       {"", "01", "1.", "\"\\ud83d\"", "\"\\ude00\"", "[1,]", "[1 ,2]", "nul", "\"\x01\"",
        "\"\xff\"", "{\"a\" :1}", " 1"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"],"additionalProperties":false})",
       {R"({"a":1})", R"({"a":1,"b":"x"})", "{\n  \"a\": 1,\n  \"b\": \"x\"\n}", R"({ "a": 1 })"},
       {"{}", R"({"b":"x","a":1})", R"({"a":1,"b":2})", R"({"a":1,"c":2})", R"({"a":1,})",
        R"({"a":1.5})", "{\n\n\"a\":1}"}},
      {R"({"type":"object","properties":{"a":{},"b":{}}})",
       {"{}", R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2,"c":3,"d":{}})", R"({"c":1})",
        R"({"ab":1})", R"({"":1})"},
       {R"({"b":1,"a":1})", R"({"c":1,"a":2})", R"({"\u0061":1})"}},
      {R"({"properties":{"a":false},"required":["b"]})",
       {"1", "[]", R"({"b":1})"},
       {R"({"a":1,"b":2})", "{}"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})",
       {"[1,2]", "[1,2,3]", "[1, 2]", "[\n  1,\n  2\n]"},
       {"[]", "[1]", "[1,2,3,4]", "[1,2,]", "[1 ]"}},
      {R"({"type":"array","maxItems":0})", {"[]", "[ ]"}, {"[1]"}},
      {R"({"type":"array","maxItems":1})", {"[]", "[1]"}, {"[1,2]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false,"minItems":1})",
       {"[1]", "[1,\"a\"]"},
       {"[]", "[\"a\"]", "[1,\"a\",2]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"}],"items":{"type":"string"},"minItems":2,"maxItems":3})",
       {"[1,\"a\"]", "[1,\"a\",\"b\"]"},
       {"[1]", "[1,2]", "[1,\"a\",\"b\",\"c\"]"}},
      {R"({"enum":[1,"a\n",null,{"x":[1,2]},[]]})",
       {"1", R"("a\n")", "null", R"({"x":[1,2]})", R"({"x": [1, 2]})", "[]"},
       {"2", R"("a")", R"({"x":[2,1]})", R"("a\u000a")"}},
      {R"({"type":"string","enum":["a",1]})", {R"("a")"}, {"1"}},
      {R"({"const":1.5})", {"1.5"}, {"1", "1.50"}},
      {R"({"anyOf":[{"type":"string"},{"type":"integer"}]})", {"1", R"("x")"}, {"1.5", "null"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}],"additionalProperties":true})",
       {R"({"a":1})", R"({"b":0})", R"({"a":1,"b":0})"},
       {"{}", R"({"c":1})"}},
      {R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"v":{"type":"integer"}},"required":["k","v"],"additionalProperties":false},
                    {"type":"object","properties":{"k":{"const":"b"},"w":{"type":"string"}},"required":["k","w"],"additionalProperties":false}]})",
       {R"({"k":"a","v":1})", R"({"k":"b","w":"x"})"},
       {R"({"k":"a","w":"x"})"}},
      {R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"],"additionalProperties":false}},"$ref":"#/$defs/n"})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
       {R"({"v":1})", R"({"v":1,"next":{"v":2}})"}},
      {R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[],[[]]]"}, {"[1]", "[[]"}},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", {"null"}, {"1"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("äöü")", R"("\n😀")", R"("\ud83d\ude00x")"},
       {R"("a")", R"("abcd")", R"("😀")"}},
      {R"({"type":"string","maxLength":100000})", {R"("")", R"("abc")"}, {}},
      {R"({"type":"string","pattern":"b+"})",
       {R"("abc")", R"("bb")", R"("\"b")"},
       {R"("ac")", R"("")"}},
      {R"({"type":"string","pattern":"^[a-z]{2,3}$","maxLength":2})",
       {R"("ab")"},
       {R"("abc")", R"("a")"}},
      {R"({"type":"string","pattern":"^(\\d{3}|x)-?$"})",
       {R"("123-")", R"("x")"},
       {R"("12")", R"("123--")"}},
      {R"({"type":"string","format":"date"})",
       {R"("2024-02-29")", R"("2000-12-31")"},
       {R"("2023-02-29")", R"("1900-02-29")", R"("2024-13-01")"}},
      {R"({"type":"integer","minimum":3,"maximum":120})",
       {"3", "9", "10", "99", "120", "119"},
       {"2", "121", "-5", "03", "1000", "3.5"}},
      {R"({"type":"integer","minimum":-12})",
       {"-12", "-1", "0", "7", "12345", "-9"},
       {"-13", "-100", "-20"}},
      {R"({"type":"integer","exclusiveMaximum":0})", {"-1", "-99"}, {"0", "1"}},
      {R"({"type":"number","minimum":0.25,"exclusiveMaximum":1.5})",
       {"0.25", "0.3", "1", "1.4999", "0.250"},
       {"0.2", "1.5", "0.249", "2", "-1", "1.50"}},
      {R"({"type":"number","exclusiveMinimum":0})", {"0.001", "1", "20.5"}, {"0", "-1", "0.0"}},
      {R"({"type":"number","maximum":-1.5})",
       {"-1.5", "-2", "-10", "-1.50"},
       {"-1", "-1.4", "0", "3"}},
      {R"({"type":"integer","multipleOf":7})", {"0", "7", "14", "-21", "700"}, {"1", "13", "70.7"}},
      {R"({"type":"number","multipleOf":0.01})", {"0.25", "3", "19.9", "-0.01"}, {"0.255"}},
      {R"({"type":["string","null"]})", {"null", R"("")"}, {"1"}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"a":{"maximum":5}},"required":["a"]}]})",
       {R"({"a":5})", R"({"a":-1,"z":0})"},
       {R"({"a":6})", "{}", "1"}},
      {R"({"uniqueItems":false,"title":"x","unknown":1,"type":"null"})", {"null"}, {"0"}},
      {R"({"properties":{"a/b":{"type":"integer"}},"$ref":"#/$defs/x~1y","$defs":{"x/y":{"type":"object"}}})",
       {R"({"a/b":1})"},
       {R"({"a/b":"x"})"}},
  };
  for (const Case& c : cases) {
    const auto grammar = compiled(c.schema);
    for (const char* text : c.good) {
      INFO(c.schema << "  takes  " << text);
      CHECK(takes(grammar, text));
    }
    for (const char* text : c.bad) {
      INFO(c.schema << "  refuses  " << text);
      CHECK_FALSE(takes(grammar, text));
    }
  }
}

TEST_CASE("what a grammar can't hold to is refused by name, with its path") {
  struct Refusal {
    const char* schema;
    ErrorCode code;
    const char* field;
    const char* words;
  };
  const auto kBad = ErrorCode::kInvalidArgument;
  const auto kNo = ErrorCode::kUnsupported;
  const std::vector<Refusal> refusals{
      {R"({"properties":{"a":{"not":{}}}})", kNo, "#/properties/a/not", "\"not\""},
      {R"({"patternProperties":{}})", kNo, "#/patternProperties", "patternProperties"},
      {R"({"items":{"uniqueItems":true}})", kNo, "#/items/uniqueItems", "uniqueItems"},
      {R"({"if":{}})", kNo, "#/if", "if"},
      {R"({"$ref":"http://x/y"})", kNo, "#/$ref", "leads out"},
      {R"({"$ref":"#/$defs/none"})", kBad, "#/$ref", "nothing at"},
      {R"({"$ref":"#"})", kBad, "", "without end"},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", kBad, "",
       "without end"},
      {R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})", kBad,
       "", "without end"},
      {R"({"allOf":[{"$ref":"#"}]})", kBad, "", "without end"},
      {R"({"type":"integer","minimum":3,"maximum":2})", kBad, "", "can't all be true"},
      {R"(false)", kBad, "", "can't all be true"},
      {R"({"oneOf":[{"type":"integer"},{"minimum":2}]})", kNo, "#/oneOf", "exclude"},
      {R"x({"type":"string","pattern":"(?=a)"})x", kNo, "#/pattern", "look-around"},
      {R"({"type":"string","pattern":"(a"})", kBad, "#/pattern", "without its"},
      {R"x({"type":"string","pattern":"(a)\\1"})x", kNo, "#/pattern", "back-reference"},
      {R"({"type":"string","format":"idn-email"})", kNo, "#/format", "idn-email"},
      {R"({"type":"strin"})", kBad, "#/type", "must be null"},
      {R"({"type":"string","pattern":"^(a{1,200}b){1,200}$"})", kBad, "#/pattern", "states"},
      {R"({"enum":1})", kBad, "#/enum", "list"},
      {R"({"enum":[1],"minimum":0})", kNo, "#/minimum", "beside enum"},
      {R"({"type":)", kBad, "", "valid JSON"},
      {R"([])", kBad, "#", "must be an object"},
      {R"({"type":"number","multipleOf":0.12345})", kNo, "#", "multipleOf"},
      {R"({"minItems":-1,"type":"array"})", kBad, "#/minItems", "whole number"},
      {R"({"properties":{"a":{"$id":"x"}}})", kNo, "#/properties/a/$id", "$id"},
  };
  for (const Refusal& r : refusals) {
    INFO(r.schema);
    const auto grammar = json_schema_grammar(r.schema);
    REQUIRE_FALSE(grammar.has_value());
    INFO(to_string(grammar.error()));
    CHECK(grammar.error().code == r.code);
    CHECK(grammar.error().field == r.field);
    CHECK(grammar.error().message.find(r.words) != std::string::npos);
  }
}

TEST_CASE("formats take and refuse what their standards say") {
  struct FormatCase {
    const char* format;
    std::vector<const char*> good;
    std::vector<const char*> bad;
  };
  const std::vector<FormatCase> cases{
      {"time",
       {"08:30:06Z", "23:59:60Z", "08:30:06.283185+00:20"},
       {"24:00:00Z", "08:30:06", "12:00:60Z"}},
      {"date-time",
       {"1963-06-19T08:30:06.283185Z", "1990-12-31t15:59:50.123-08:00"},
       {"1990-02-31T15:59:59Z", "1990-12-31 15:59:59Z"}},
      {"email",
       {"joe.bloggs@example.com", "te~st@example.com", "\"joe bloggs\"@example.com",
        "joe@[127.0.0.1]"},
       {"2962", ".a@b.c", "a..b@c.d", "a@"}},
      {"uuid",
       {"2EB8AA08-aa98-11ea-B4Aa-73B441D16380"},
       {"2eb8aa08-aa98-11ea-b4aa-73b441d1638", "2eb8-aa08-aa98-11ea-b4aa73b44-1d16380"}},
      {"ipv4", {"192.168.0.1", "0.0.0.0"}, {"256.1.1.1", "1.2.3", "087.10.0.1", "1.2.3.4.5"}},
      {"ipv6",
       {"::1", "::", "1::", "fe80::1:2", "1:2:3:4:5:6:7:8", "::ffff:192.168.0.1",
        "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1::d6:192.168.0.1"},
       {"12345::", "1::2::3", ":2:3:4:5:6:7:8", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9",
        "1:2:3:4:5:::8", "::192.168.0.256", "1:2:3:4::5:6:7:8:9"}},
      {"hostname",
       {"www.example.com", "a", "xn--4gbwdl.xn--wgbh1c", "a-b", "1host"},
       {"-a", "a-", "a_b", "", ".", "a..b", "a."}},
      {"uri",
       {"http://foo.bar/?baz=qux#quux", "mailto:John.Doe@example.com", "urn:oasis:names",
        "ldap://[2001:db8::7]/c=GB?objectClass?one"},
       {"//foo.bar", "/abc", "\\\\WINDOWS", "abc", "http:// x", "http://a/%zz"}},
      {"duration",
       {"P4DT12H30M5S", "PT1M", "P1Y2M3D", "P2W"},
       {"P", "PT", "P1D2W", "4D", "P2D1Y", "PT1D"}},
      {"json-pointer", {"", "/foo/bar~0~1", "/"}, {"a", "/~", "/~2"}},
  };
  for (const FormatCase& c : cases) {
    const auto grammar = compiled(fmt::format(R"({{"type":"string","format":"{}"}})", c.format));
    for (const char* text : c.good) {
      INFO(c.format << " takes " << text);
      CHECK(takes(grammar, "\"" + json_escaped(text) + "\""));
    }
    for (const char* text : c.bad) {
      INFO(c.format << " refuses " << text);
      CHECK_FALSE(takes(grammar, "\"" + json_escaped(text) + "\""));
    }
  }
}

}  // namespace
}  // namespace penstock::grammar
