// Tool calls by construction: whatever a family's grammar lets through, its parser reads back as
// calls of the tools allowed, with arguments that are instances of their parameters.
#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "core/grammar/ebnf.h"
#include "core/grammar/json_schema.h"
#include "core/grammar/matcher.h"
#include "core/prompt/chat_encoding.h"
#include "tests/support/effort.h"

namespace penstock::gateway {
namespace {

using prompt::AnswerRules;
using prompt::OutputEvent;
using Arguments = AnswerRules::Arguments;

const std::map<std::string, std::string> kParameters = {
    {"find",
     R"({"type":"object","title":"t","properties":{"item":{"type":"string","description":"d"},
      "kind":{"type":"string","enum":["a<b","</c"]},"count":{"type":"integer","minimum":1,"maximum":99},
      "note":{"type":["string","null"]},"only":{"const":"x y"},"code":{"type":"string","pattern":"^[A-Z]{2}$"},
      "at":{"$ref":"#/$defs/point"},"like":{"$ref":"#/properties/count"}},
      "required":["item","count","at"],"additionalProperties":false,
      "$defs":{"point":{"type":"object","properties":{"x":{"type":"integer"},"next":{"$ref":"#/$defs/point"}},
      "required":["x"],"additionalProperties":false}}})"},
    {"maybe",
     R"({"type":"object","properties":{"a":{"type":"boolean"},"b":{"enum":["x",1]},"c":{}},
      "required":["d"]})"},
    {"now", R"({"type":"object","properties":{},"additionalProperties":false})"},
};
const std::vector<std::string> kMarks = {"｜DSML｜",       "<tool_call>", "</tool_call>",
                                         "<|python_tag|>", "</think>",    "<think>"};
// Worth trying at any time: what begins or ends something.
const std::vector<std::string> kTempting = {"<｜DSML｜tool_calls>", "</｜DSML｜", "<tool_call>",
                                            "</think>", "<|python_tag|>"};

std::optional<TokenId> mark_id(std::string_view content) {
  const auto found = std::ranges::find(kMarks, content);
  if (found == kMarks.end()) return std::nullopt;
  return static_cast<TokenId>(found - kMarks.begin());
}

Conversation conversation(Thinking thinking) {
  Conversation out;
  out.messages.push_back({Role::kUser, "Hi", {}, {}, {}});
  for (const auto& [name, parameters] : kParameters)
    out.tools.push_back({name, R"({"name":")" + name + R"(","parameters":)" + parameters + "}"});
  out.thinking = thinking;
  return out;
}

bool is_instance(const std::string& schema, const std::string& text) {
  const auto grammar = grammar::json_schema_grammar(schema, grammar::Whitespace::kLimited);
  REQUIRE(grammar);
  grammar::Matcher matcher(*grammar);
  return matcher.advance(text) && matcher.complete();
}

// Any symbol that the grammar may read next, one that begins or ends something more often.
std::uint32_t any_symbol(const grammar::Matcher& matcher, Rng& rng) {
  const grammar::Grammar& grammar = matcher.grammar();
  std::vector<std::uint32_t> symbols;
  std::vector<std::uint32_t> turning;
  for (const grammar::Position& at : matcher.reader().positions) {
    const grammar::Grammar::Node& node = grammar.nodes[at.node];
    for (std::uint32_t e = node.edges; e < node.edges_end; ++e) {
      const auto [first, last, target, op] = grammar.edges[e];
      symbols.push_back(first + static_cast<std::uint32_t>(rng.below(last - first + 1)));
      if (first >= grammar::kTokenSymbol) turning.push_back(first);
      for (const char c : std::string_view("<{\"}]")) {
        const auto symbol = static_cast<std::uint32_t>(c);
        if (first <= symbol && symbol <= last) turning.push_back(symbol);
      }
    }
  }
  const auto& from = !turning.empty() && rng.below(3) == 0 ? turning : symbols;
  return from[rng.below(from.size())];
}

// A text of the grammar; empty when it didn't end soon enough.
std::string walk(grammar::Matcher matcher, Rng& rng) {
  std::string text;
  for (int steps = 0; steps < 4000; ++steps) {
    if (matcher.exhausted() || (matcher.complete() && rng.below(16) == 0)) return text;
    if (rng.below(8) == 0) {
      const std::string& word = kTempting[rng.below(kTempting.size())];
      if (matcher.advance(word)) text += word;
      continue;
    }
    const std::uint32_t symbol = any_symbol(matcher, rng);
    if (!matcher.advance_symbol(symbol)) continue;  // a string that counts has enough
    if (symbol < grammar::kTokenSymbol) {
      text += static_cast<char>(symbol);
    } else {
      text += kMarks[symbol - grammar::kTokenSymbol];
    }
  }
  return {};
}

struct Read {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
};

Read read(const prompt::ChatEncoding& encoding, const Conversation& asked, std::string_view answer,
          std::size_t piece, bool json_or_calls = false) {
  const auto parser = json_or_calls ? encoding.make_json_or_calls_parser(asked, {})
                                    : encoding.make_parser(asked, {});
  std::vector<OutputEvent> events;
  for (std::size_t i = 0; i < answer.size(); i += piece)
    parser->feed(answer.substr(i, piece), events);
  parser->finish(events);
  Read out;
  for (const OutputEvent& event : events) {
    if (event.kind == OutputEvent::Kind::kContent) out.content += event.text;
    if (event.kind == OutputEvent::Kind::kToolBegin) out.calls.push_back({event.text, {}});
    if (event.kind == OutputEvent::Kind::kToolArguments) out.calls.back().second += event.text;
  }
  return out;
}

// How many answers had calls.
int check_family(const char* family, Thinking thinking, const AnswerRules& rules, bool tokens,
                 Rng& rng) {
  const auto encoding = prompt::make_chat_encoding(family);
  REQUIRE(encoding);
  const Conversation asked = conversation(thinking);
  const auto text = (*encoding)->answer_grammar(asked, rules, [&](std::string_view content) {
    return tokens ? mark_id(content) : std::nullopt;
  });
  if (!text) FAIL(to_string(text.error()));
  INFO(*text);
  const auto grammar = grammar::ebnf_grammar(*text);
  if (!grammar) FAIL(to_string(grammar.error()));
  int with_calls = 0;
  for (int i = 0; i < rounds(40); ++i) {
    const std::string answer = walk(grammar::Matcher(*grammar), rng);
    if (answer.empty()) continue;
    CAPTURE(answer);
    const bool json = !rules.json.empty();
    const Read whole = read(**encoding, asked, answer, answer.size(), json);
    const Read bytes = read(**encoding, asked, answer, 1, json);
    // An instance, not a byte less, or calls and no text.
    if (json && whole.calls.empty()) CHECK(is_instance(rules.json, whole.content));
    if (json && !whole.calls.empty()) CHECK(whole.content.empty());
    CHECK(bytes.calls == whole.calls);
    CHECK(bytes.content == whole.content);
    if (rules.must_call) {
      CHECK(whole.content.empty());
      CHECK_FALSE(whole.calls.empty());
    }
    if (!rules.several_calls) CHECK(whole.calls.size() <= 1);
    with_calls += whole.calls.empty() ? 0 : 1;
    for (const auto& [name, arguments] : whole.calls) {
      CAPTURE(name);
      CAPTURE(arguments);
      const auto tool = std::ranges::find(asked.tools, name, &ToolDefinition::name);
      REQUIRE(tool != asked.tools.end());
      const Arguments held = rules.tools[static_cast<std::size_t>(tool - asked.tools.begin())];
      CHECK(held != Arguments::kNone);
      boost::json::error_code error;
      CHECK(boost::json::parse(arguments, error).is_object());
      if (held == Arguments::kBySchema) CHECK(is_instance(kParameters.at(name), arguments));
    }
  }
  if (rules.must_call) CHECK(with_calls >= 3);
  return with_calls;
}

TEST_CASE("every text of a family's grammar is an answer with valid calls") {
  Rng rng(7);
  const std::vector<Arguments> all(3, Arguments::kBySchema);
  const std::vector<Arguments> some = {Arguments::kBySchema, Arguments::kAny, Arguments::kNone};
  int unforced = 0;
  for (const char* family : {"deepseek_v4", "deepseek_v4_1", "qwen3", "llama3_1"}) {
    CAPTURE(std::string(family));
    for (const Thinking thinking : {Thinking::kEnabled, Thinking::kDisabled}) {
      check_family(family, thinking, {.tools = all, .must_call = true}, true, rng);
      check_family(family, thinking, {.tools = some, .must_call = true, .several_calls = false},
                   true, rng);
      unforced += check_family(family, thinking, {.tools = some}, true, rng);
    }
    // Marks that the vocabulary doesn't have are spelled.
    unforced += check_family(family, Thinking::kEnabled, {.tools = some}, false, rng);
  }
  CHECK(unforced >= 20);
}

TEST_CASE("every text of a grammar of JSON or calls is one of the two") {
  Rng rng(8);
  const AnswerRules rules = {
      .tools = {Arguments::kBySchema, Arguments::kAny, Arguments::kNone},
      .json = R"({"type":"object","properties":{"a":{"type":"string"}},"required":["a"],
                  "additionalProperties":false})"};
  int with_calls = 0;
  for (const char* family : {"deepseek_v3_2", "deepseek_v4", "deepseek_v4_1"}) {
    CAPTURE(std::string(family));
    for (const Thinking thinking : {Thinking::kEnabled, Thinking::kDisabled})
      with_calls += check_family(family, thinking, rules, true, rng);
  }
  CHECK(with_calls >= 3);
}

TEST_CASE("free text spells no mark of a call") {
  for (const auto& [family, mark] :
       {std::pair("deepseek_v4", "<｜DSML｜"), std::pair("qwen3", "<tool_call>"),
        std::pair("llama3_1", "<|python_tag|>")}) {
    CAPTURE(family);
    const auto encoding = prompt::make_chat_encoding(family);
    const auto text = (*encoding)->answer_grammar(
        conversation(Thinking::kDisabled), {.tools = std::vector(3, Arguments::kAny)}, mark_id);
    REQUIRE(text);
    const auto grammar = grammar::ebnf_grammar(*text);
    REQUIRE(grammar);
    grammar::Matcher matcher(*grammar);
    CHECK(matcher.advance("Well, a <b> and <"));
    CHECK(matcher.complete());
    CHECK_FALSE(matcher.advance("| " + std::string(mark)));
  }
}

}  // namespace
}  // namespace penstock::gateway
