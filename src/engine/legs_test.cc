// Prefill and decode legs on two engines: the same text as on one, whatever arrives.
#include <cstring>
#include <map>

#include "engine/engine.h"
#include "engine/testing/random_checkpoint.h"

#include <doctest/doctest.h>

namespace penstock::engine {
namespace {

using Texts = std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<TokenId>>;

// Keeps what a prefill leg computed, block by block, as the bytes were when it was shown.
class Shelf final : public LegSink {
 public:
  explicit Shelf(KvPool& pool) : pool_(pool) {}
  void grown(const EngineRequest&, std::span<const BlockId> blocks, std::uint32_t tokens) override {
    CHECK(tokens > tokens_);
    CHECK(blocks.size() == (tokens + kBlockTokens - 1) / kBlockTokens);
    payloads_.resize(blocks.size());
    // A whole block is final when it is shown.
    for (std::size_t i = tokens_ / kBlockTokens; i < blocks.size(); ++i) {
      const auto bytes = pool_.payload(blocks[i]);
      payloads_[i].assign(bytes.begin(), bytes.end());
    }
    tokens_ = tokens;
    ++times_;
  }
  std::uint32_t tokens() const { return tokens_; }
  std::uint32_t times() const { return times_; }
  const std::vector<std::vector<std::byte>>& payloads() const { return payloads_; }

 private:
  KvPool& pool_;
  std::uint32_t tokens_ = 0;
  std::uint32_t times_ = 0;
  std::vector<std::vector<std::byte>> payloads_;
};

class FromShelf final : public RemotePrefix {
 public:
  FromShelf(KvPool& pool, const Shelf& shelf) : pool_(pool), shelf_(shelf) {}
  void start(std::span<const BlockId> to) override { to_.assign(to.begin(), to.end()); }
  bool arrived() override { return has_arrived; }
  Arrival arrival() override {
    if (fails) return {};
    REQUIRE(to_.size() >= shelf_.payloads().size());
    for (std::size_t i = 0; i < shelf_.payloads().size(); ++i) {
      std::memcpy(pool_.payload(to_[i]).data(), shelf_.payloads()[i].data(),
                  shelf_.payloads()[i].size());
    }
    return {shelf_.tokens(), drawn, nullptr};
  }
  void stop() override { ++stops; }

  bool has_arrived = false;
  bool fails = false;
  std::optional<TokenId> drawn;
  int stops = 0;

 private:
  KvPool& pool_;
  const Shelf& shelf_;
  std::vector<BlockId> to_;
};

struct TwoEngines {
  TemporaryFolder folder;
  std::unique_ptr<Engine> prefill;
  std::unique_ptr<Engine> decode;

  explicit TwoEngines(std::uint32_t kv_blocks = 0) {
    CheckpointShape shape;
    shape.context_length = 512;
    REQUIRE(write_checkpoint(folder.path(), shape, 33));
    EngineOptions options;
    options.checkpoint_dir = folder.path();
    options.threads = 1;
    options.max_batch_tokens = 48;
    prefill = *Engine::open(options);
    options.max_batch_tokens = 100;
    options.kv_blocks = kv_blocks;
    decode = *Engine::open(options);
  }
};

EngineRequest request(std::uint32_t prompt_tokens, std::uint32_t choices, double temperature) {
  EngineRequest r;
  r.id = RequestId(7);
  std::vector<TokenId> prompt;
  for (std::uint32_t i = 0; i < prompt_tokens; ++i)
    prompt.push_back((i * 37 + prompt_tokens) % 96);
  r.prompt = std::make_shared<const std::vector<TokenId>>(std::move(prompt));
  r.sampling.max_tokens = 20;
  r.sampling.ignore_eos = true;
  r.sampling.seed = 5;
  r.sampling.choices = choices;
  r.sampling.temperature = static_cast<float>(temperature);
  r.sampling.presence_penalty = 0.5F;
  return r;
}

void run(Engine& engine, Texts& texts, std::optional<FinishReason>* finish = nullptr) {
  for (int steps = 0; engine.has_work(); ++steps) {
    REQUIRE(steps < 5000);
    for (const EngineOutput& o : engine.step().outputs) {
      for (const OutputToken& t : o.tokens)
        texts[{o.request.value, o.choice}].push_back(t.token);
      if (finish != nullptr && o.finish) *finish = o.finish;
    }
  }
}

}  // namespace

TEST_CASE("two legs say what one engine says, for all lengths around a block, greedy and sampled") {
  TwoEngines two;
  for (const std::uint32_t length : {1U, 2U, 47U, 63U, 64U, 65U, 127U, 128U, 129U, 300U}) {
    for (const std::uint32_t choices : {1U, 3U}) {
      const EngineRequest whole = request(length, choices, length % 2 == 0 ? 0 : 1);
      Texts expected;
      REQUIRE(two.decode->submit(whole));
      run(*two.decode, expected);

      Shelf shelf(two.prefill->pool());
      two.prefill->set_leg_sink(&shelf);
      EngineRequest leg = whole;
      leg.handoff.leg = Leg::kPrefill;
      Texts texts;
      std::optional<FinishReason> finish;
      REQUIRE(two.prefill->submit(leg));
      run(*two.prefill, texts, &finish);
      CHECK(finish == FinishReason::kHandedOff);
      CHECK(shelf.tokens() == length);
      CHECK(shelf.times() == (length + 47) / 48);
      CHECK(two.prefill->load().kv_tokens_used == Tokens(0));

      auto remote = std::make_shared<FromShelf>(two.decode->pool(), shelf);
      if (choices == 1) {
        REQUIRE(texts[{7, 0}].size() == 1);
        remote->drawn = texts[{7, 0}][0];
      } else {
        CHECK(texts.empty());
      }
      leg = whole;
      leg.handoff.leg = Leg::kDecode;
      REQUIRE(two.decode->submit(leg, remote));
      CHECK(two.decode->has_work());
      CHECK(two.decode->step().outputs.empty());  // it takes blocks, and waits
      CHECK_FALSE(two.decode->has_work());
      CHECK(two.decode->load().waiting == 1);
      remote->has_arrived = true;
      CHECK(two.decode->has_work());
      run(*two.decode, texts);
      CHECK(texts == expected);
      CHECK(remote->stops == 0);
      CHECK(two.decode->load().kv_tokens_used == Tokens(0));
    }
  }
}

TEST_CASE("a prefix that did not arrive is computed, and others do not wait for it") {
  TwoEngines two;
  EngineRequest whole = request(150, 1, 1);
  Texts expected;
  REQUIRE(two.decode->submit(whole));
  run(*two.decode, expected);

  Shelf shelf(two.prefill->pool());
  auto remote = std::make_shared<FromShelf>(two.decode->pool(), shelf);
  remote->fails = true;
  EngineRequest leg = whole;
  leg.handoff.leg = Leg::kDecode;
  REQUIRE(two.decode->submit(leg, remote));
  EngineRequest other = request(90, 1, 0);
  other.id = RequestId(8);
  REQUIRE(two.decode->submit(other));
  Texts texts;
  run(*two.decode, texts);
  CHECK(texts[{8, 0}].size() == 20);
  texts.erase({8, 0});
  CHECK(texts.empty());
  remote->has_arrived = true;
  run(*two.decode, texts);
  CHECK(texts == expected);
}

TEST_CASE("a leg that is cancelled while it waits gives its blocks back, once stopped") {
  TwoEngines two;
  Shelf shelf(two.prefill->pool());
  auto remote = std::make_shared<FromShelf>(two.decode->pool(), shelf);
  EngineRequest leg = request(150, 1, 0);
  leg.handoff.leg = Leg::kDecode;
  REQUIRE(two.decode->submit(leg, remote));
  two.decode->step();
  CHECK(two.decode->load().kv_tokens_used == Tokens(3 * 64));
  two.decode->cancel(RequestId(7));
  CHECK(two.decode->has_work());
  const StepOutputs last = two.decode->step();
  REQUIRE(last.outputs.size() == 1);
  CHECK(last.outputs[0].finish == FinishReason::kCancelled);
  CHECK(remote->stops == 1);
  CHECK(two.decode->load().kv_tokens_used == Tokens(0));
  CHECK_FALSE(two.decode->has_work());
}

TEST_CASE("an older request takes the blocks of one that waits for its KV; it is computed later") {
  TwoEngines two(8);
  Texts expected;
  EngineRequest young = request(200, 1, 0);
  REQUIRE(two.decode->submit(young));
  run(*two.decode, expected);

  EngineRequest old = request(250, 1, 0);
  old.id = RequestId(1);
  old.sampling.max_tokens = 200;
  REQUIRE(two.decode->submit(old));
  two.decode->step();
  Shelf shelf(two.prefill->pool());
  auto remote = std::make_shared<FromShelf>(two.decode->pool(), shelf);
  young.handoff.leg = Leg::kDecode;
  REQUIRE(two.decode->submit(young, remote));
  Texts texts;
  run(*two.decode, texts);
  CHECK(remote->stops == 1);
  CHECK(texts[{1, 0}].size() == 200);
  CHECK(texts[{7, 0}] == expected[{7, 0}]);
  CHECK(two.decode->load().kv_tokens_used == Tokens(0));
}

TEST_CASE("blocks that come back late cost nobody else theirs") {
  TwoEngines two(8);
  // 8 blocks: the old one will want a fifth, a young one holds two, and three wait for a remote.
  EngineRequest old = request(250, 1, 0);
  old.id = RequestId(1);
  old.sampling.max_tokens = 60;
  REQUIRE(two.decode->submit(old));
  for (int i = 0; i < 3; ++i)
    two.decode->step();
  EngineRequest young = request(70, 1, 0);
  young.id = RequestId(2);
  young.sampling.max_tokens = 50;
  REQUIRE(two.decode->submit(young));
  two.decode->step();

  class Held final : public RemotePrefix {
   public:
    explicit Held(KvPool& pool) : pool_(pool) {}
    void start(std::span<const BlockId> to) override {
      to_.assign(to.begin(), to.end());
      for (const BlockId block : to_)
        pool_.retain(block);
    }
    bool arrived() override { return false; }
    Arrival arrival() override { return {}; }
    void stop() override { stopped = true; }
    void let_go() {
      for (const BlockId block : to_)
        pool_.release(block);
      to_.clear();
    }
    bool stopped = false;

   private:
    KvPool& pool_;
    std::vector<BlockId> to_;
  };
  auto remote = std::make_shared<Held>(two.decode->pool());
  EngineRequest waits = request(100, 1, 0);
  waits.handoff.leg = Leg::kDecode;
  REQUIRE(two.decode->submit(waits, remote));
  std::uint32_t preempted = 0;
  for (int steps = 0; two.decode->has_work() && !remote->stopped && steps < 200; ++steps) {
    const StepOutputs out = two.decode->step();
    preempted += out.stats.preempted;
  }
  REQUIRE(remote->stopped);
  CHECK(preempted == 1);  // the one that waited; the young one keeps its blocks
  remote->let_go();
  Texts texts;
  run(*two.decode, texts);
  CHECK(two.decode->load().kv_tokens_used == Tokens(0));
}

}  // namespace penstock::engine
