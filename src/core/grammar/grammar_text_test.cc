// Texts that EBNF and Lark grammars take, and how bad grammars are refused.
#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/grammar/ebnf.h"
#include "core/grammar/lark.h"
#include "core/grammar/matcher.h"

namespace penstock::grammar {
namespace {

struct Case {
  const char* grammar;
  std::vector<const char*> good;
  std::vector<const char*> bad;
};

template <typename Compile>
void check(const std::vector<Case>& cases, Compile compile) {
  for (const Case& c : cases) {
    INFO(std::string(c.grammar));
    const auto grammar = compile(c.grammar);
    if (!grammar) FAIL(to_string(grammar.error()));
    const auto takes = [&](std::string_view text) {
      Matcher matcher(*grammar);
      return matcher.advance(text) && matcher.complete();
    };
    for (const std::string text : c.good) {
      INFO("takes " << text);
      CHECK(takes(text));
    }
    for (const std::string text : c.bad) {
      INFO("refuses " << text);
      CHECK_FALSE(takes(text));
    }
  }
}

struct Refusal {
  const char* grammar;
  const char* words;
};

template <typename Compile>
void check_refusals(const std::vector<Refusal>& refusals, Compile compile) {
  for (const Refusal& r : refusals) {
    INFO(std::string(r.grammar));
    const auto grammar = compile(r.grammar);
    REQUIRE_FALSE(grammar.has_value());
    INFO(grammar.error().message);
    CHECK(grammar.error().message.find(r.words) != std::string::npos);
  }
}

TEST_CASE("EBNF grammars take their texts") {
  check(
      {{"root ::= \"yes\" | \"no\" # or\n", {"yes", "no"}, {"", "yesno", "maybe"}},
       {"root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]{1,3} | \"(\" expr \")\"",
        {"1", "1+(22+333)"},
        {"1+", "4444", "(1"}},
       {"root ::= item (\",\" item)*\nitem ::= [a-c]+ | \"[\" root? \"]\"",
        {"a", "abc,b", "[[a],[]]"},
        {"", "d", "[", "a,,b"}},
       {"root ::= .{2} \"\\n\" [^\\n]", {"\xC3\xA4x\ny"}, {"ab\n\n", "abc"}},
       {"root ::= /a+b?/ x\nx ::= %json {\"type\":\"object\",\"properties\":{\"}\":{\"const\":1}},"
        "\"required\":[\"}\"],\"additionalProperties\":false}",
        {"aab{\"}\":1}", "a{\"}\": 1}"},
        {"b{\"}\":1}", "a{}"}},
       {"root ::= %without (\"</a>\" \"\xC3\xA4!\") \"</a>\"?",
        {"", "</a", "\xC3\xA4 <</a>", "</b></a>", "x!"},
        {"</a>x", "</a></a>", "\xC3\xA4!</a>"}},
       {"root ::= %json \"/$defs/a~1b\" {\"$defs\":{\"a/b\":{\"type\":\"array\",\"items\":"
        "{\"$ref\":\"#/$defs/c\"}},\"c\":{\"const\":1}}}",
        {"[]", "[1,1]"},
        {"[2]", "{}"}}},
      [](std::string_view text) { return ebnf_grammar(text); });
}

TEST_CASE("EBNF tokens are symbols that no text spells") {
  const auto grammar = ebnf_grammar("root ::= .* <[300]> \"x\"");
  REQUIRE(grammar.has_value());
  Matcher matcher(*grammar);
  CHECK(matcher.advance("thinking"));
  CHECK_FALSE(matcher.complete());
  CHECK_FALSE(matcher.advance_symbol(kTokenSymbol + 301));
  CHECK(matcher.advance_symbol(kTokenSymbol + 300));
  CHECK_FALSE(matcher.advance("y"));
  CHECK(matcher.advance("x"));
  CHECK(matcher.complete());
}

TEST_CASE("bad EBNF is refused with its line") {
  check_refusals({{"", "no rule \"root\""},
                  {"root ::= other", "\"other\" in line 1"},
                  {"root ::= \"a", "quote without"},
                  {"root ::= \"x\"\n\nroot ::= \"y\"", "second rule"},
                  {"root ::= (\"x\"", "without its"},
                  {"root ::= [z-a]", "wrong order"},
                  {"root ::= root \"x\" | \"y\"", "begins with itself"},
                  {"root ::= \"x\" root", "without end"},
                  {"root ::= %json {\"not\":{}}", "\"not\""},
                  {"root ::= \"x\"{3,2}", "{min,max}"},
                  {"root ::= %without x", "a %without that isn't"},
                  {"root ::= %without ()", "a %without that isn't"},
                  {"root ::= %without (\"a\"", "a %without that isn't"},
                  {"root ::= %without (\"\")", "an empty text"},
                  {"root ::= %json \"/a\" {}", "nothing at"},
                  {"root ::= (((\"ab\"{1000}){1000}){1000}){1000}", "too large"}},
                 [](std::string_view text) { return ebnf_grammar(text); });
  check_refusals(
      {{"root ::= \"word\" | [0-9a-fA-F]{100}", "more than"}},
      [](std::string_view text) { return ebnf_grammar(text, {.compiled_bytes_max = 4000}); });
}

TEST_CASE("Lark grammars take their texts") {
  check(
      {{"start: greeting (\",\" NAME)* \".\"?\n// comment\n?greeting.2: \"hello\"i | /h[ae]y/ -> "
        "short\n"
        "NAME: LETTER~1..3\nLETTER: \"a\"..\"z\"\n%ignore / +/\n",
        {"HeLLo", "hey , abc.", "hay,a,b"},
        {"hello,abcd", "hello,,a", "h ey"}},
       {"start: [sign] INT\nsign: \"-\"\n%import common.INT\n", {"1", "-23"}, {"-", "x"}},
       {"start: list\nlist: \"[\" [start (\",\" start)*] \"]\"", {"[]", "[[],[[]]]"}, {"[", "[,]"}},
       {"start: A\nA: %json {\"type\":\"boolean\"}", {"true"}, {"tru"}}},
      [](std::string_view text) { return lark_grammar(text); });
}

TEST_CASE("bad Lark is refused with its line") {
  check_refusals({{"a: \"x\"", "no rule \"start\""},
                  {"start: start \"x\" | \"y\"", "begins with itself"},
                  {"start: /a/i", "flags"},
                  {"%declare X\nstart: X", "%declare"},
                  {"start: X\n%import common.NONE\n", "common.NONE"},
                  {"start: \"a\"~3..2", "wrong order"}},
                 [](std::string_view text) { return lark_grammar(text); });
}

}  // namespace
}  // namespace penstock::grammar
