// Constrained answers of a real model: valid, the same alone, continued, among others, and with n
// > 1.
#include "io/embedded/grammar_constraints.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "core/grammar/constraint.h"
#include "core/grammar/matcher.h"
#include "core/prompt/chat_encoding.h"
#include "core/prompt/tokenizer.h"
#include "engine/engine.h"

namespace penstock {
namespace {

constexpr const char* kModel = "models/nano";

std::string tokenizer_json() {
  std::ifstream file(std::string(kModel) + "/tokenizer.json", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Rig {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<engine::Engine> engine;
  std::uint64_t next_id = 1;

  Rig() {
    auto read = Tokenizer::from_json(tokenizer_json());
    REQUIRE(read.has_value());
    tokenizer = std::move(*read);
    engine::EngineOptions options;
    options.checkpoint_dir = kModel;
    options.context_length = 1024;
    options.kv_blocks = 128;
    auto opened = engine::Engine::open(options);
    REQUIRE(opened.has_value());
    engine = std::move(*opened);
    auto constraints = GrammarConstraints::open(tokenizer_json(), engine->description().vocab_size);
    REQUIRE(constraints.has_value());
    engine->set_constraints(std::move(*constraints));
  }

  EngineRequest request(Constraint constraint, float temperature, std::uint64_t seed) {
    EngineRequest r;
    r.id = RequestId(next_id++);
    auto prompt = std::make_shared<std::vector<TokenId>>();
    REQUIRE(tokenizer->encode("Say something in JSON.", *prompt).has_value());
    r.prompt = prompt;
    r.sampling.temperature = temperature;
    r.sampling.seed = seed;
    r.sampling.max_tokens = 120;
    r.constraint = std::move(constraint);
    return r;
  }

  struct Answer {
    std::vector<TokenId> tokens;
    std::vector<OutputToken> drawn;
    std::optional<FinishReason> finish;
    std::string error;
  };
  std::map<std::uint32_t, Answer> run(EngineRequest r) {
    const RequestId id = r.id;
    const Status taken = engine->submit(std::move(r));
    if (!taken) FAIL(to_string(taken.error()));
    return finish(id);
  }
  std::map<std::uint32_t, Answer> finish(RequestId id) {
    std::map<std::uint32_t, Answer> answers;
    while (engine->has_work()) {
      for (EngineOutput& output : engine->step().outputs) {
        if (output.request != id) continue;
        Answer& a = answers[output.choice];
        for (OutputToken& token : output.tokens) {
          a.tokens.push_back(token.token);
          a.drawn.push_back(std::move(token));
        }
        if (output.finish) a.finish = output.finish;
        if (output.error) a.error = output.error->message;
      }
    }
    return answers;
  }
  std::string text(const std::vector<TokenId>& tokens) {
    return tokenizer->decode(tokens, Tokenizer::Special::kSkip);
  }
};

bool is_instance(const Constraint& constraint, std::string_view text, bool whole) {
  const auto grammar = grammar::compile(constraint);
  REQUIRE(grammar.has_value());
  grammar::Matcher matcher(*grammar);
  return matcher.advance(text) && (!whole || matcher.complete());
}

const Constraint kPerson{
    Constraint::Kind::kJsonSchema,
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer",
    "minimum":0,"maximum":150},"tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":3}},
    "required":["name","age","tags"],"additionalProperties":false})"};

TEST_CASE("constrained answers are instances, at any temperature, for every choice") {
  Rig rig;
  for (const float temperature : {0.0F, 1.0F, 2.0F}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      EngineRequest r = rig.request(kPerson, temperature, seed);
      r.sampling.choices = 3;
      r.sampling.top_logprobs = 2;
      for (const auto& [choice, answer] : rig.run(std::move(r))) {
        const std::string text = rig.text(answer.tokens);
        INFO(text << " " << answer.error);
        CHECK(answer.finish == FinishReason::kStop);  // the schema bounds its length
        CHECK(is_instance(kPerson, text, true));
        for (const OutputToken& token : answer.drawn)
          CHECK(token.top.size() == 2);
      }
    }
  }
}

TEST_CASE("kept grammars have a limit, and what is thrown away is made again") {
  const auto schema = [](int n) {
    return Constraint{Constraint::Kind::kJsonSchema,
                      R"({"type":"object","properties":{"p)" + std::to_string(n) +
                          R"(":{"type":"string"},"rest":{"type":"string","pattern":"^[a-f]{1,9}$"}},
                          "required":["rest"],"additionalProperties":false})"};
  };
  const auto small = GrammarConstraints::open(tokenizer_json(), 2048, 64 << 10);
  const auto large = GrammarConstraints::open(tokenizer_json(), 2048);
  REQUIRE(small.has_value());
  REQUIRE(large.has_value());
  constexpr std::string_view kText = R"({"rest":"abc"})";
  const auto start = [&](int n) {
    auto first = (*small)->start(schema(n));
    auto second = (*large)->start(schema(n));
    REQUIRE(first.has_value());
    REQUIRE(second.has_value());
    return std::pair(std::move(*first), std::move(*second));
  };
  auto read = Tokenizer::from_json(tokenizer_json());
  REQUIRE(read.has_value());
  std::vector<TokenId> tokens;
  REQUIRE((*read)->encode(kText, tokens).has_value());
  const auto held = start(0);  // is used all the time
  for (int n = 0; n < 60; ++n) {
    const auto [limited, free] = start(n);
    for (const TokenId token : tokens) {
      std::vector<std::uint64_t> a(2048 / 64);
      std::vector<std::uint64_t> b(2048 / 64);
      CHECK(limited->allow(a) == free->allow(b));
      CHECK(a == b);
      CHECK(limited->take(token));
      CHECK(free->take(token));
    }
  }
  CHECK((*large)->kept_count() == 60);
  CHECK((*small)->kept_count() < 30);
  CHECK((*small)->kept_bytes() <= 64 << 10);
  std::vector<std::uint64_t> a(2048 / 64);
  std::vector<std::uint64_t> b(2048 / 64);
  CHECK(held.first->allow(a) == held.second->allow(b));
  CHECK(a == b);
}

TEST_CASE("a continued constrained answer is the uninterrupted one, wherever it is cut") {
  Rig rig;
  const auto whole = rig.run(rig.request(kPerson, 1.0F, 9)).at(0);
  REQUIRE(whole.finish == FinishReason::kStop);
  for (std::size_t cut = 1; cut < whole.tokens.size(); cut += 3) {
    EngineRequest r = rig.request(kPerson, 1.0F, 9);
    r.emitted.assign(whole.tokens.begin(), whole.tokens.begin() + static_cast<std::ptrdiff_t>(cut));
    // Others run beside it.
    REQUIRE(
        rig.engine->submit(rig.request({Constraint::Kind::kJsonObject}, 1.0F, cut)).has_value());
    auto rest = rig.run(std::move(r)).at(0);
    std::vector<TokenId> both(whole.tokens.begin(),
                              whole.tokens.begin() + static_cast<std::ptrdiff_t>(cut));
    both.insert(both.end(), rest.tokens.begin(), rest.tokens.end());
    CHECK(both == whole.tokens);
  }
}

TEST_CASE("a forced call of a real engine is valid, for every choice and wherever it is cut") {
  Rig rig;
  const std::string schema =
      R"({"type":"object","properties":{"seats":{"type":"integer","minimum":1,"maximum":99},
          "hall":{"type":"string","enum":["north","south"]},"late":{"type":["boolean","null"]},
          "marks":{"type":"array","items":{"enum":["a",1]},"maxItems":4}},
          "required":["seats","hall","marks"],"additionalProperties":false})";
  Conversation asked;
  asked.messages.push_back({Role::kUser, "Hi", {}, {}, {}});
  asked.tools.push_back({"book", R"({"name":"book","parameters":)" + schema + "}"});
  asked.thinking = Thinking::kDisabled;
  const auto encoding = prompt::detect_chat_encoding(
      [&](std::string_view token) { return rig.tokenizer->token_id(token).has_value(); });
  REQUIRE(encoding.has_value());
  const auto grammar = (*encoding)->answer_grammar(
      asked,
      {.tools = {prompt::AnswerRules::Arguments::kBySchema},
       .must_call = true,
       .several_calls = false},
      [&](std::string_view token) { return rig.tokenizer->token_id(token); });
  REQUIRE(grammar.has_value());
  const Constraint constraint{Constraint::Kind::kEbnf, *grammar};
  const auto check = [&](const std::vector<TokenId>& tokens) {
    const std::string text = rig.tokenizer->decode(tokens, Tokenizer::Special::kKeep);
    INFO(text);
    const auto parser = (*encoding)->make_parser(asked, {});
    std::vector<prompt::OutputEvent> events;
    parser->feed(text, events);
    parser->finish(events);
    std::string arguments;
    int calls = 0;
    for (const prompt::OutputEvent& event : events) {
      CHECK(event.kind != prompt::OutputEvent::Kind::kContent);
      calls += event.kind == prompt::OutputEvent::Kind::kToolBegin ? 1 : 0;
      if (event.kind == prompt::OutputEvent::Kind::kToolArguments) arguments += event.text;
    }
    CHECK(calls == 1);
    CHECK(is_instance({Constraint::Kind::kJsonSchema, schema}, arguments, true));
  };
  for (const float temperature : {0.0F, 1.0F, 2.0F}) {
    EngineRequest r = rig.request(constraint, temperature, 7);
    r.sampling.choices = 3;
    r.sampling.max_tokens = 400;
    for (auto& [choice, answer] : rig.run(std::move(r))) {
      INFO(answer.error);
      REQUIRE(answer.finish == FinishReason::kStop);
      answer.tokens.pop_back();  // the end
      check(answer.tokens);
    }
  }
  EngineRequest whole = rig.request(constraint, 1.0F, 9);
  whole.sampling.max_tokens = 400;
  const auto tokens = rig.run(std::move(whole)).at(0).tokens;
  for (std::size_t cut = 1; cut < tokens.size(); cut += 5) {
    EngineRequest r = rig.request(constraint, 1.0F, 9);
    r.sampling.max_tokens = 400;
    r.emitted.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(cut));
    std::vector<TokenId> both = r.emitted;
    const auto rest = rig.run(std::move(r)).at(0).tokens;
    both.insert(both.end(), rest.begin(), rest.end());
    CHECK(both == tokens);
  }
}

TEST_CASE("patterns, grammars, JSON objects, and a part that is free") {
  Rig rig;
  const std::vector<Constraint> constraints{
      {Constraint::Kind::kRegex, "[A-Z][a-z]{2,5}-[0-9]{3}"},
      {Constraint::Kind::kEbnf, "root ::= \"yes\" | \"no, \" [a-z]{3,8}"},
      {Constraint::Kind::kLark, "start: \"x\"~2..3 \"!\""},
      {Constraint::Kind::kJsonObject},
  };
  for (const Constraint& constraint : constraints) {
    const auto answer = rig.run(rig.request(constraint, 1.0F, 3)).at(0);
    const std::string text = rig.text(answer.tokens);
    INFO(text);
    CHECK(is_instance(constraint, text, answer.finish == FinishReason::kStop));
  }
  // Up to the token everything may come but the end; behind it, the grammar.
  Constraint late{Constraint::Kind::kRegex, "[01]{4}"};
  late.after = rig.tokenizer->token_id("</think>");
  REQUIRE(late.after.has_value());
  EngineRequest r = rig.request(late, 1.0F, 5);
  r.sampling.logit_bias = {{*late.after, 8.0F}};
  const auto answer = rig.run(std::move(r)).at(0);
  const auto marker = std::ranges::find(answer.tokens, *late.after);
  REQUIRE(marker != answer.tokens.end());
  CHECK(answer.finish == FinishReason::kStop);
  CHECK(is_instance({Constraint::Kind::kRegex, "[01]{4}"},
                    rig.text({marker + 1, answer.tokens.end()}), true));
}

TEST_CASE("what can't be held to is refused at submit") {
  Rig rig;
  const auto refusal = [&](EngineRequest r) {
    const Status taken = rig.engine->submit(std::move(r));
    REQUIRE_FALSE(taken.has_value());
    return taken.error();
  };
  CHECK(refusal(rig.request({Constraint::Kind::kJsonSchema, R"({"not":{}})"}, 1, 1)).code ==
        ErrorCode::kUnsupported);
  CHECK(refusal(rig.request({Constraint::Kind::kJsonSchema, R"({"$ref":"#"})"}, 1, 1)).field ==
        "response_format");
  EngineRequest endless = rig.request(kPerson, 1, 1);
  endless.sampling.ignore_eos = true;
  CHECK(refusal(std::move(endless)).field == "ignore_eos");
  EngineRequest foreign = rig.request(kPerson, 1, 1);
  REQUIRE(rig.tokenizer->encode("no", foreign.emitted).has_value());
  CHECK(refusal(std::move(foreign)).field == "emitted");
  rig.engine->set_constraints(nullptr);
  CHECK(refusal(rig.request(kPerson, 1, 1)).code == ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace penstock
