// Two embedded engines and a handoff service played by the test: who is told what, and that every
// block comes back.
#include "io/embedded/handoff_legs.h"

#include <cstring>
#include <map>
#include <set>

#include "engine/testing/random_checkpoint.h"
#include "io/embedded/embedded_engine.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

using engine::BlockId;
using engine::kBlockTokens;

struct PlayedPull final : Pull {
  State state() const override { return now; }
  std::uint32_t tokens() const override { return whole; }
  const std::optional<EngineOutput>& first_output() const override { return output; }
  std::string why() const override { return "the test says so"; }

  State now = State::kRunning;
  std::uint32_t whole = 0;
  std::optional<EngineOutput> output;
  std::vector<std::uint32_t> to;
  bool stopped = false;
};

// Keeps everything it is told; gives blocks back when asked to.
class PlayedPort final : public HandoffPort {
 public:
  explicit PlayedPort(engine::Engine& engine) : pool_(engine.pool()) {}

  void announce(HandoffId id, const std::string& model) override {
    CHECK(model == "m");
    CHECK(states.emplace(id, "announced").second);
  }
  void publish(HandoffId id, std::uint32_t first, std::span<const HandoffBlock> blocks,
               std::uint32_t tokens) override {
    CHECK(states.at(id) == "announced");
    CHECK(first == published.size());
    CHECK(first + blocks.size() == (tokens + kBlockTokens - 1) / kBlockTokens);
    for (const HandoffBlock& block : blocks) {
      CHECK(pool_.generation(BlockId{block.block}) == block.generation);
      published.push_back(block.block);
      held.insert(block.block);
    }
    published_tokens = tokens;
  }
  void close(HandoffId id, std::optional<EngineOutput> output) override {
    CHECK(states.at(id) == "announced");
    states[id] = "closed";
    closed_with = std::move(output);
  }
  void withdraw(HandoffId id, const std::string& why) override {
    CHECK(states.at(id) == "announced");
    states[id] = "withdrawn: " + why;
  }
  std::shared_ptr<Pull> pull(const HandoffRef& from, const std::string&, std::uint32_t tokens,
                             std::vector<std::uint32_t> to) override {
    CHECK(to.empty());
    source = from.source;
    pulling = std::make_shared<PlayedPull>();
    pulling->whole = tokens;
    return pulling;
  }
  void fill(const std::shared_ptr<Pull>& pull, std::vector<std::uint32_t> to) override {
    CHECK(pull == pulling);
    CHECK(pulling->to.empty());
    pulling->to = std::move(to);
    for (const std::uint32_t block : pulling->to)
      held.insert(block);
  }
  void stop(const std::shared_ptr<Pull>& pull) override {
    CHECK(pull == pulling);
    pulling->stopped = true;
  }
  std::vector<std::uint32_t> take_freed() override {
    std::vector<std::uint32_t> freed;
    if (gives_back) freed.assign(held.begin(), held.end());
    if (gives_back) held.clear();
    return freed;
  }
  // What another port has published arrives here.
  void arrive(const PlayedPort& from, const engine::KvPool& theirs) {
    REQUIRE(pulling->to.size() >= from.published.size());
    auto& other = const_cast<engine::KvPool&>(theirs);
    for (std::size_t i = 0; i < from.published.size(); ++i) {
      const auto bytes = other.payload(BlockId{from.published[i]});
      std::memcpy(pool_.payload(BlockId{pulling->to[i]}).data(), bytes.data(), bytes.size());
    }
    pulling->output = from.closed_with;
    gives_back = true;
    pulling->now = Pull::State::kDone;
  }

  std::map<HandoffId, std::string> states;
  std::vector<std::uint32_t> published;
  std::uint32_t published_tokens = 0;
  std::optional<EngineOutput> closed_with;
  std::shared_ptr<PlayedPull> pulling;
  std::string source;
  std::multiset<std::uint32_t> held;
  bool gives_back = false;

 private:
  engine::KvPool& pool_;
};

struct Worker {
  std::unique_ptr<EmbeddedEngine> engine;
  std::unique_ptr<PlayedPort> port;
  std::vector<std::string> log;

  explicit Worker(const std::string& folder, std::uint32_t kv_blocks = 0) {
    engine::EngineOptions options;
    options.checkpoint_dir = folder;
    options.model_name = "m";
    options.threads = 1;
    options.max_batch_tokens = 70;
    options.kv_blocks = kv_blocks;
    auto opened = engine::Engine::open(options);
    REQUIRE(opened);
    engine = std::make_unique<EmbeddedEngine>(std::move(*opened));
    port = std::make_unique<PlayedPort>(engine->engine());
    engine->hand_off(*port, [this](std::string_view why) { log.emplace_back(why); });
  }
  ~Worker() { engine->detach_handoff(); }

  std::vector<EngineOutput> run() {
    std::vector<EngineOutput> outputs;
    for (int steps = 0; engine->has_work(); ++steps) {
      REQUIRE(steps < 1000);
      engine->step(outputs);
    }
    return outputs;
  }
  // The service has given everything back.
  void check_empty() {
    port->gives_back = true;
    engine->on_handoff_news();
    static_cast<void>(run());
    CHECK(engine->load().kv_tokens_used == Tokens(0));
  }
};

struct Two {
  engine::TemporaryFolder folder;
  std::unique_ptr<Worker> prefill;
  std::unique_ptr<Worker> decode;

  explicit Two(std::uint32_t prefill_blocks = 0) {
    engine::CheckpointShape shape;
    shape.eos = {95};
    REQUIRE(engine::write_checkpoint(folder.path(), shape, 5));
    prefill = std::make_unique<Worker>(folder.path(), prefill_blocks);
    decode = std::make_unique<Worker>(folder.path());
  }
};

EngineRequest request(std::uint64_t id, Leg leg, std::uint32_t tokens = 200) {
  EngineRequest r;
  r.id = RequestId(id);
  std::vector<TokenId> prompt;
  for (std::uint32_t i = 0; i < tokens; ++i)
    prompt.push_back(i * 31 % 90);
  r.prompt = std::make_shared<const std::vector<TokenId>>(std::move(prompt));
  r.sampling.max_tokens = 10;
  r.sampling.ignore_eos = true;
  r.sampling.seed = 9;
  r.handoff.leg = leg;
  r.handoff.id = {1, id};
  if (leg == Leg::kDecode) r.handoff.source = "shm:/there";
  return r;
}

std::vector<TokenId> tokens_of(const std::vector<EngineOutput>& outputs) {
  std::vector<TokenId> tokens;
  for (const EngineOutput& output : outputs) {
    for (const OutputToken& token : output.tokens)
      tokens.push_back(token.token);
  }
  return tokens;
}

}  // namespace

TEST_CASE("blocks are published as they fill, the last one partly; then the first token closes") {
  Two two;
  REQUIRE(two.decode->engine->submit(request(7, Leg::kWhole)));
  const std::vector<EngineOutput> expected = two.decode->run();

  Worker& p = *two.prefill;
  REQUIRE(p.engine->submit(request(7, Leg::kPrefill)));
  const HandoffId id{1, 7};
  std::vector<EngineOutput> outputs;
  p.engine->step(outputs);  // 70 tokens: one whole block
  CHECK(p.port->published.size() == 1);
  CHECK(p.port->published_tokens == 64);
  p.engine->step(outputs);
  CHECK(p.port->published_tokens == 128);
  p.engine->step(outputs);
  CHECK(p.port->published_tokens == 200);
  REQUIRE(outputs.size() == 1);
  CHECK(outputs[0].finish == FinishReason::kHandedOff);
  CHECK(p.port->states.at(id) == "closed");
  REQUIRE(p.port->closed_with);
  CHECK(p.port->closed_with->tokens == outputs[0].tokens);
  CHECK(p.engine->load().kv_tokens_used == Tokens(256));  // for the reader

  Worker& d = *two.decode;
  REQUIRE(d.engine->submit(request(7, Leg::kDecode)));
  CHECK(d.run().empty());
  CHECK(d.port->source == "shm:/there");
  CHECK(d.port->pulling->whole == 200);
  CHECK_FALSE(d.engine->has_work());
  CHECK(d.engine->load().waiting == 1);
  d.port->arrive(*p.port, p.engine->engine().pool());
  d.engine->on_handoff_news();
  const std::vector<EngineOutput> got = d.run();
  CHECK(tokens_of(got) == tokens_of(expected));
  CHECK(got[0].tokens == outputs[0].tokens);  // the first token is reported here, too
  CHECK_FALSE(got[0].finish);
  CHECK(got.back().finish == FinishReason::kLength);
  CHECK(d.log.empty());
  p.check_empty();
  d.check_empty();
}

TEST_CASE("a first token that ends the answer ends the decode leg with it") {
  Two two;
  EngineRequest r = request(3, Leg::kPrefill);
  r.sampling.max_tokens = 1;
  REQUIRE(two.prefill->engine->submit(r));
  static_cast<void>(two.prefill->run());
  REQUIRE(two.prefill->port->closed_with);
  CHECK(two.prefill->port->closed_with->finish == FinishReason::kLength);
  r = request(3, Leg::kDecode);
  r.sampling.max_tokens = 1;
  REQUIRE(two.decode->engine->submit(r));
  static_cast<void>(two.decode->run());
  two.decode->port->arrive(*two.prefill->port, two.prefill->engine->engine().pool());
  two.decode->engine->on_handoff_news();
  std::vector<EngineOutput> got = two.decode->run();
  std::erase_if(got, [](const EngineOutput& o) { return o.finish == FinishReason::kCancelled; });
  REQUIRE(got.size() == 1);
  CHECK(got[0].tokens.size() == 1);
  CHECK(got[0].finish == FinishReason::kLength);
  two.prefill->check_empty();
  two.decode->check_empty();
}

TEST_CASE("a pull that fails is told of, and its prompt computed") {
  Two two;
  REQUIRE(two.prefill->engine->submit(request(4, Leg::kWhole)));
  const std::vector<EngineOutput> expected = two.prefill->run();
  Worker& d = *two.decode;
  REQUIRE(d.engine->submit(request(4, Leg::kDecode)));
  static_cast<void>(d.run());
  d.port->gives_back = true;
  d.port->pulling->now = Pull::State::kFailed;
  d.engine->on_handoff_news();
  CHECK(tokens_of(d.run()) == tokens_of(expected));
  REQUIRE(d.log.size() == 1);
  CHECK(d.log[0] == "the test says so");
  d.check_empty();
}

TEST_CASE("legs that are cancelled: the handoff is withdrawn, the pull stopped, all blocks back") {
  Two two;
  Worker& p = *two.prefill;
  REQUIRE(p.engine->submit(request(5, Leg::kPrefill)));
  std::vector<EngineOutput> outputs;
  p.engine->step(outputs);
  p.engine->cancel(RequestId(5));
  p.engine->step(outputs);
  CHECK(p.port->states.at({1, 5}) == "withdrawn: the prefill leg was cancelled");
  CHECK_FALSE(p.engine->has_work());
  p.check_empty();

  Worker& d = *two.decode;
  REQUIRE(d.engine->submit(request(5, Leg::kDecode)));
  d.engine->step(outputs);
  d.engine->cancel(RequestId(5));
  d.engine->step(outputs);
  CHECK(d.port->pulling->stopped);
  // Until the service lets them go nobody else may have them.
  CHECK(d.engine->load().kv_tokens_used == Tokens(256));
  d.check_empty();
}

TEST_CASE("a leg that is thrown out for others ends its handoff: its old blocks go back") {
  Two two(8);
  EngineRequest old = request(8, Leg::kWhole, 60);
  old.sampling.max_tokens = 390;
  REQUIRE(two.decode->engine->submit(old));
  const std::vector<EngineOutput> expected = two.decode->run();
  REQUIRE(two.decode->engine->submit(request(9, Leg::kWhole, 400)));
  const std::vector<EngineOutput> expected_leg = two.decode->run();

  // Both need 8 and 7 of 8 blocks: the younger one gives way in the middle of its prompt.
  Worker& p = *two.prefill;
  REQUIRE(p.engine->submit(old));
  REQUIRE(p.engine->submit(request(9, Leg::kPrefill, 400)));
  std::vector<EngineOutput> outputs = p.run();
  CHECK(p.port->published.size() == 5);
  CHECK(p.port->states.at({1, 9}) == "withdrawn: the prefill leg gave its blocks to others");
  // Nor can the older one go on without the blocks that the service still has.
  CHECK(p.engine->load().waiting == 2);
  p.port->gives_back = true;
  p.engine->on_handoff_news();
  for (EngineOutput& output : p.run())
    outputs.push_back(std::move(output));
  CHECK(outputs.back().request == RequestId(9));
  CHECK(outputs.back().finish == FinishReason::kHandedOff);
  CHECK(tokens_of({outputs.back()})[0] == tokens_of(expected_leg)[0]);
  outputs.pop_back();
  CHECK(tokens_of(outputs) == tokens_of(expected));
  p.check_empty();
}

TEST_CASE("a leg that is refused is not announced") {
  Two two;
  EngineRequest r = request(6, Leg::kPrefill);
  r.model = "another";
  CHECK_FALSE(two.prefill->engine->submit(r));
  CHECK(two.prefill->port->states.empty());
}

TEST_CASE("without a handoff service there are no legs") {
  engine::TemporaryFolder folder;
  REQUIRE(engine::write_checkpoint(folder.path(), {}, 5));
  engine::EngineOptions options;
  options.checkpoint_dir = folder.path();
  auto opened = engine::Engine::open(options);
  REQUIRE(opened);
  EmbeddedEngine embedded(std::move(*opened));
  const Status refused = embedded.submit(request(1, Leg::kDecode));
  REQUIRE(!refused);
  CHECK(refused.error().field == "handoff");
}

}  // namespace penstock
