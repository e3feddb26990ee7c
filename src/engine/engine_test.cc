// Behaviour of the engine's public face. The one-arithmetic property is in one_arithmetic_test.cc.
#include "engine/engine.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <tuple>

#include "engine/testing/memory_cache.h"
#include "engine/testing/random_checkpoint.h"

#include <doctest/doctest.h>

namespace penstock::engine {
namespace {

struct Fixture {
  TemporaryFolder folder;
  CheckpointShape shape;
  EngineOptions options;

  Fixture() {
    shape.context_length = 256;
    shape.eos = {3};
    options.checkpoint_dir = folder.path();
    options.model_name = "random";
    options.threads = 2;
  }
  std::unique_ptr<Engine> open() {
    REQUIRE(write_checkpoint(folder.path(), shape, 21));
    auto engine = Engine::open(options);
    REQUIRE(engine);
    return std::move(*engine);
  }
};

EngineRequest request(std::uint64_t id, std::vector<TokenId> prompt, std::uint32_t max_tokens) {
  EngineRequest r;
  r.id = RequestId(id);
  r.prompt = std::make_shared<const std::vector<TokenId>>(std::move(prompt));
  r.sampling.max_tokens = max_tokens;
  r.sampling.ignore_eos = true;
  r.sampling.seed = id;
  return r;
}

struct Answer {
  std::vector<TokenId> tokens;
  std::optional<FinishReason> finish;
  std::uint32_t cached = 0;
};
using Answers = std::map<std::pair<std::uint64_t, std::uint32_t>, Answer>;

void collect(Answers& answers, const StepOutputs& step) {
  for (const EngineOutput& o : step.outputs) {
    Answer& a = answers[{o.request.value, o.choice}];
    CHECK(!a.finish);
    for (const OutputToken& t : o.tokens)
      a.tokens.push_back(t.token);
    a.finish = o.finish;
    a.cached += o.cached_tokens;
  }
}

Answers finish_all(Engine& engine) {
  Answers answers;
  for (int steps = 0; engine.has_work(); ++steps) {
    REQUIRE(steps < 10000);
    collect(answers, engine.step());
  }
  return answers;
}

}  // namespace

TEST_CASE("a request is answered with its number of tokens, and everything is released") {
  Fixture f;
  const auto engine = f.open();
  CHECK(!engine->has_work());
  REQUIRE(engine->submit(request(1, {5, 6, 7}, 9)));
  CHECK(engine->load().waiting == 1);
  const Answers answers = finish_all(*engine);
  REQUIRE(answers.size() == 1);
  CHECK(answers.at({1, 0}).tokens.size() == 9);
  CHECK(answers.at({1, 0}).finish == FinishReason::kLength);
  CHECK(engine->load().kv_tokens_used == Tokens(0));
  CHECK(engine->load().step == 9);
  const ExpertReport counts = engine->expert_report();
  CHECK(counts.first_layer == 1);
  CHECK(counts.layers == 2);
  std::uint64_t routed = 0;
  for (const std::uint64_t n : counts.picks)
    routed += n;
  CHECK(routed == 2 * 2 * (3 + 8));  // layers x experts per token x computed tokens
}

TEST_CASE("choices differ, share the prompt's blocks, and are numbered") {
  Fixture f;
  const auto engine = f.open();
  EngineRequest r = request(1, std::vector<TokenId>(100, 9), 20);
  r.sampling.choices = 3;
  REQUIRE(engine->submit(std::move(r)));
  Answers answers;
  collect(answers, engine->step());
  CHECK(engine->load().running == 3);
  CHECK(engine->load().kv_tokens_used == Tokens(2 * 64));
  collect(answers, engine->step());
  // The full block stays shared; of the partial one everybody but the last has a copy.
  CHECK(engine->load().kv_tokens_used == Tokens((1 + 3) * 64));
  while (engine->has_work())
    collect(answers, engine->step());
  CHECK(answers.size() == 3);
  CHECK(answers.at({1, 0}).tokens != answers.at({1, 1}).tokens);
  CHECK(answers.at({1, 1}).tokens != answers.at({1, 2}).tokens);
  CHECK(engine->load().kv_tokens_used == Tokens(0));
}

TEST_CASE("generation ends at stop tokens, end of sequence and the context") {
  Fixture f;
  const auto engine = f.open();
  EngineRequest greedy = request(1, {5, 6, 7}, 12);
  greedy.sampling.temperature = 0;
  REQUIRE(engine->submit(greedy));
  const std::vector<TokenId> free_run = finish_all(*engine).at({1, 0}).tokens;

  EngineRequest stopped = greedy;
  stopped.sampling.stop_token_ids = {free_run[4]};
  REQUIRE(engine->submit(stopped));
  const Answer answer = finish_all(*engine).at({1, 0});
  CHECK(answer.finish == FinishReason::kStop);
  CHECK(answer.tokens.back() == free_run[4]);
  CHECK(answer.tokens.size() <= 5);

  EngineRequest ended = greedy;
  ended.sampling.ignore_eos = false;
  ended.sampling.logit_bias = {{3, 100.0F}};
  REQUIRE(engine->submit(ended));
  const Answer eos = finish_all(*engine).at({1, 0});
  CHECK(eos.finish == FinishReason::kStop);
  CHECK(eos.tokens == std::vector<TokenId>{3});

  REQUIRE(engine->submit(request(2, std::vector<TokenId>(250, 8), 1000)));
  const Answer full = finish_all(*engine).at({2, 0});
  CHECK(full.finish == FinishReason::kLength);
  CHECK(full.tokens.size() == 6);
}

TEST_CASE("a continued stream that had ended already ends at once") {
  Fixture f;
  const auto engine = f.open();
  EngineRequest r = request(1, {5, 6}, 4);
  r.emitted = {10, 11, 12, 13};
  REQUIRE(engine->submit(r));
  CHECK(engine->has_work());
  Answers answers = finish_all(*engine);
  CHECK(answers.at({1, 0}).finish == FinishReason::kLength);
  CHECK(answers.at({1, 0}).tokens.empty());
  r.emitted = {10, 3};
  r.sampling.ignore_eos = false;
  REQUIRE(engine->submit(r));
  CHECK(finish_all(*engine).at({1, 0}).finish == FinishReason::kStop);
}

TEST_CASE("cancelling ends every unfinished choice once, waiting or running") {
  Fixture f;
  f.options.max_sequences = 2;
  const auto engine = f.open();
  EngineRequest r = request(1, {5, 6, 7}, 50);
  r.sampling.choices = 2;
  REQUIRE(engine->submit(r));
  REQUIRE(engine->submit(request(2, {5, 6, 7}, 50)));
  Answers answers;
  collect(answers, engine->step());
  CHECK(engine->load().waiting == 1);
  engine->cancel(RequestId(1));
  engine->cancel(RequestId(1));
  engine->cancel(RequestId(2));
  engine->cancel(RequestId(77));
  collect(answers, engine->step());
  CHECK(!engine->has_work());
  CHECK(answers.size() == 3);
  for (const auto& [key, answer] : answers)
    CHECK(answer.finish == FinishReason::kCancelled);
  CHECK(engine->load().kv_tokens_used == Tokens(0));
  REQUIRE(engine->submit(request(1, {5}, 1)));
  CHECK(finish_all(*engine).size() == 1);
}

TEST_CASE("blocks computed elsewhere are loaded instead of computed") {
  Fixture f;
  const auto engine = f.open();
  std::vector<TokenId> prompt;
  for (TokenId i = 0; i < 130; ++i)
    prompt.push_back(i * 7 % 90);
  MemoryCache cache(engine->pool(), engine->config());
  engine->set_block_sink(&cache);
  REQUIRE(engine->submit(request(1, prompt, 80)));
  const Answer cold = finish_all(*engine).at({1, 0});
  CHECK(cold.cached == 0);
  // 130 + 79 computed tokens are three whole blocks, each shown once.
  CHECK(cache.shown() == 3);
  engine->set_block_sink(nullptr);

  struct Case {
    MemoryCache::LoadPlan plan;
    std::uint32_t cached;
  };
  const Case cases[] = {
      {{.blocks = 0}, 0},
      {{.blocks = 1}, 64},
      {{.blocks = 2}, 128},
      {{.blocks = 2, .polls_late = 5}, 128},
      {{.blocks = 2, .wrong_layer = 0, .wrong_block = 0}, 0},
      {{.blocks = 2, .wrong_layer = 0, .wrong_block = 1}, 64},
      {{.blocks = 2, .polls_late = 2, .wrong_layer = 2, .wrong_block = 1}, 64},
  };
  for (const Case& c : cases) {
    CAPTURE(c.plan.blocks);
    CAPTURE(c.plan.wrong_layer);
    REQUIRE(engine->submit(request(1, prompt, 80), cache.load(engine->pool(), prompt, c.plan)));
    const Answer warm = finish_all(*engine).at({1, 0});
    CHECK(warm.cached == c.cached);
    CHECK(warm.tokens == cold.tokens);
    CHECK(engine->load().kv_tokens_used == Tokens(0));
  }
  // A load must leave something to compute.
  prompt.resize(128);
  CHECK(!engine->submit(request(1, prompt, 10), cache.load(engine->pool(), prompt, {.blocks = 2})));
}

TEST_CASE("blocks that the cache could not take are shown again") {
  for (const int refused : {1, 2, 3, 4}) {
    CAPTURE(refused);
    Fixture f;
    const auto engine = f.open();
    MemoryCache cache(engine->pool(), engine->config());
    engine->set_block_sink(&cache);
    cache.refuse(refused);
    // Shown after the prompt (two blocks), at the third block, and at the end.
    REQUIRE(engine->submit(request(1, std::vector<TokenId>(130, 3), 80)));
    finish_all(*engine);
    CHECK(cache.shown() == (refused < 3 ? 3 : 0));
  }
}

TEST_CASE("a late load does not hold up others") {
  Fixture f;
  const auto engine = f.open();
  std::vector<TokenId> prompt(130, 3);
  MemoryCache cache(engine->pool(), engine->config());
  engine->set_block_sink(&cache);
  REQUIRE(engine->submit(request(1, prompt, 2)));
  finish_all(*engine);
  REQUIRE(engine->submit(request(2, {5, 6}, 20)));
  engine->step();
  REQUIRE(engine->submit(request(3, prompt, 2),
                         cache.load(engine->pool(), prompt, {.blocks = 2, .polls_late = 10})));
  for (int i = 0; i < 8; ++i) {
    Answers answers;
    collect(answers, engine->step());
    CHECK(answers.contains({2, 0}));
    CHECK(!answers.contains({3, 0}));
  }
  engine->cancel(RequestId(3));  // with its load under way
  finish_all(*engine);
  CHECK(engine->load().kv_tokens_used == Tokens(0));
}

// Of three tokens one may come next, which one depends on how many were taken.
class EveryThird final : public TokenConstraint {
 public:
  explicit EveryThird(std::uint32_t& asked) : asked_(asked) {}
  bool take(TokenId token) override { return token % 3 == taken_++ % 3; }
  bool allow(std::span<std::uint64_t> allowed) override {
    ++asked_;
    for (TokenId token = taken_ % 3; token < allowed.size() * 64; token += 3)
      allowed[token / 64] |= std::uint64_t{1} << (token % 64);
    return false;
  }

 private:
  std::uint32_t& asked_;
  std::uint32_t taken_ = 0;
};
class EveryThirds final : public Constraints {
 public:
  explicit EveryThirds(std::uint32_t& asked) : asked_(asked) {}
  Result<std::unique_ptr<TokenConstraint>> start(const Constraint&) override {
    return std::make_unique<EveryThird>(asked_);
  }

 private:
  std::uint32_t& asked_;
};

TEST_CASE("a constraint holds with any number of threads, and is asked once a token") {
  std::vector<Answers> all;
  for (const std::uint32_t threads : {1U, 2U, 4U}) {
    Fixture f;
    f.options.threads = threads;
    const auto engine = f.open();
    std::uint32_t asked = 0;
    engine->set_constraints(std::make_unique<EveryThirds>(asked));
    for (const std::uint64_t id : {1U, 2U}) {
      EngineRequest r = request(id, std::vector<TokenId>(70, 9), 20);
      r.sampling.choices = id == 1 ? 3 : 1;
      r.sampling.ignore_eos = false;
      r.constraint.kind = Constraint::Kind::kJsonObject;
      if (id == 2) r.emitted = {6, 7, 8, 9};
      REQUIRE(engine->submit(std::move(r)));
    }
    REQUIRE(engine->submit(request(3, {5, 6, 7}, 20)));  // one without, beside them
    all.push_back(finish_all(*engine));
    std::uint32_t drawn = 0;
    for (const auto& [key, answer] : all.back()) {
      const auto [id, choice] = key;
      CHECK(answer.tokens.size() == (id == 2 ? 16 : 20));
      if (id == 3) continue;
      drawn += static_cast<std::uint32_t>(answer.tokens.size());
      for (std::size_t i = 0; i < answer.tokens.size(); ++i)
        CHECK(answer.tokens[i] % 3 == (i + (id == 2 ? 4 : 0)) % 3);
    }
    CHECK(asked == drawn);
    for (const auto& [key, answer] : all.back())
      CHECK(answer.tokens == all.front().at(key).tokens);
  }
}

TEST_CASE("requests that cannot be served are refused with the reason") {
  Fixture f;
  f.options.kv_blocks = 3;
  f.options.max_waiting = 2;
  const auto engine = f.open();
  const auto refused = [&](EngineRequest r, ErrorCode code, const char* field) {
    const Status status = engine->submit(std::move(r));
    REQUIRE(!status);
    CHECK(status.error().code == code);
    CHECK(status.error().field == field);
  };
  refused(request(1, {}, 1), ErrorCode::kInvalidArgument, "prompt");
  refused(request(1, {97}, 1), ErrorCode::kInvalidArgument, "prompt");
  refused(request(1, {1}, 0), ErrorCode::kInvalidArgument, "max_tokens");
  refused(request(1, std::vector<TokenId>(256, 1), 1), ErrorCode::kContextLengthExceeded, "prompt");
  refused(request(1, {1}, 200), ErrorCode::kContextLengthExceeded, "max_tokens");
  EngineRequest r = request(1, {1}, 1);
  r.prompt = nullptr;
  refused(r, ErrorCode::kInvalidArgument, "prompt");
  r = request(1, {1}, 1);
  r.model = "other";
  refused(r, ErrorCode::kModelNotFound, "model");
  r = request(1, {1}, 5);
  r.emitted = {200};
  refused(r, ErrorCode::kInvalidArgument, "emitted");
  r.emitted = {2};
  r.sampling.choices = 2;
  refused(r, ErrorCode::kInvalidArgument, "emitted");
  REQUIRE(engine->submit(request(1, {1}, 1)));
  refused(request(1, {1}, 1), ErrorCode::kConflict, "");
  REQUIRE(engine->submit(request(2, {1}, 1)));
  refused(request(3, {1}, 1), ErrorCode::kOverloaded, "");
  CHECK(finish_all(*engine).size() == 2);
}

TEST_CASE("options that cannot work are refused by name") {
  Fixture f;
  REQUIRE(write_checkpoint(f.folder.path(), f.shape, 21));
  const auto refused = [&](auto spoil, const char* field) {
    EngineOptions o = f.options;
    spoil(o);
    const auto engine = Engine::open(o);
    REQUIRE(!engine);
    CHECK(engine.error().field == field);
  };
  refused([](EngineOptions& o) { o.threads = 100000; }, "threads");
  refused([](EngineOptions& o) { o.max_batch_tokens = 0; }, "max_batch_tokens");
  refused([](EngineOptions& o) { o.max_sequences = 1U << 30; }, "max_sequences");
  refused([](EngineOptions& o) { o.context_length = 257; }, "context_length");
  refused([](EngineOptions& o) { o.kv_bytes = Bytes(100); }, "kv_bytes");
  refused([](EngineOptions& o) { o.checkpoint_dir = "/nonexistent"; }, "");
}

TEST_CASE("a shape that needs more memory than there is is refused") {
  Fixture f;
  f.shape.layers = 1;
  f.shape.experts = 0;
  f.shape.heads = 1024;
  f.shape.kv_lora_rank = 1024;
  f.shape.nope_width = 1;
  f.shape.rope_width = 2;
  f.shape.value_width = 1;
  f.options.max_batch_tokens = 65536;
  REQUIRE(write_checkpoint(f.folder.path(), f.shape, 21));
  const auto engine = Engine::open(f.options);
  REQUIRE(!engine);
  CHECK(engine.error().field == "max_batch_tokens");
}

TEST_CASE("a damaged checkpoint gives an error output, not a token") {
  Fixture f;
  f.shape.type = StoredType::kF32;
  f.open();
  // Infinity in the last norm (its values lie at the end of the file before the layers' tensors).
  const std::string path = f.folder.path() + "/model.safetensors";
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(path));
  std::streamoff embedding = std::streamoff{97} * 40 * 4;
  std::uint64_t header = 0;
  file.read(reinterpret_cast<char*>(&header), 8);
  file.seekp(8 + static_cast<std::streamoff>(header) + 2 * embedding);
  for (int i = 0; i < 40; ++i)
    file.write("\0\0\xC0\x7F", 4);
  REQUIRE(file.tellp() < size);
  file.close();
  auto engine = Engine::open(f.options);
  REQUIRE(engine);
  REQUIRE((*engine)->submit(request(1, {5}, 3)));
  const StepOutputs out = (*engine)->step();
  REQUIRE(out.outputs.size() == 1);
  CHECK(out.outputs[0].finish == FinishReason::kError);
  CHECK(out.outputs[0].error->code == ErrorCode::kInternal);
  CHECK(!(*engine)->has_work());
}

}  // namespace penstock::engine
