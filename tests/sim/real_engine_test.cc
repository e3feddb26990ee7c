// The embedded engine in the simulated world: the arithmetic, the pool and the legs are the
// product's, too; its checkpoint is small and random.
#include <algorithm>
#include <utility>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "engine/testing/random_checkpoint.h"
#include "io/embedded/embedded_engine.h"
#include "tests/sim/bodies.h"
#include "tests/sim/world.h"

namespace penstock::simulated {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class RealEngine final : public SimEngine {
 public:
  explicit RealEngine(const std::string& folder) {
    engine::EngineOptions options;
    options.checkpoint_dir = folder;
    options.model_name = kToyModel;
    options.threads = 1;
    options.kv_blocks = 40;
    options.max_batch_tokens = 48;
    auto opened = engine::Engine::open(options);
    ENSURE(opened);
    engine_ = std::make_unique<EmbeddedEngine>(std::move(*opened));
  }

  const ModelDescription& description() const override { return engine_->description(); }
  Status submit(EngineRequest request) override { return engine_->submit(std::move(request)); }
  void cancel(RequestId request) override { engine_->cancel(request); }
  bool has_work() const override { return engine_->has_work(); }
  void step(std::vector<EngineOutput>& outputs) override { engine_->step(outputs); }
  EngineLoad load() const override {
    EngineLoad load = engine_->load();
    load.prefill = {0.002, 0.0001, 0};  // measured in real time, it would differ between two runs
    return load;
  }
  void set_waker(std::function<void()> waker) override { engine_->set_waker(std::move(waker)); }

  service::RankMemory memory() override {
    engine::KvPool& pool = engine_->engine().pool();
    std::byte* const payloads = pool.payload(engine::BlockId{0}).data();
    service::RankMemory memory;
    memory.pool = {pool.fd(),
                   payloads - pool.payload_offset(),
                   pool.mapped_bytes(),
                   pool.payload_offset(),
                   pool.layout().block_bytes(),
                   pool.blocks()};
    memory.payloads = payloads;
    memory.model = kToyModel;
    memory.layers = pool.layout().layers;
    memory.block_tokens = engine::kBlockTokens;
    memory.slice_bytes = pool.layout().slice_bytes();
    memory.kv_format = description().kv.kv_format;
    return memory;
  }
  void connect(HandoffPort& port) override { engine_->hand_off(port); }
  void on_handoff_news() override { engine_->on_handoff_news(); }
  void detach() override { engine_->detach_handoff(); }
  Duration step_cost() const override { return milliseconds(3); }
  std::uint32_t blocks_used() const override {
    engine::KvPool& pool = engine_->engine().pool();
    return pool.blocks() - pool.free_blocks();
  }
  std::size_t open() const override { return load().running + load().waiting; }

 private:
  std::unique_ptr<EmbeddedEngine> engine_;
};

struct Checkpoint {
  Checkpoint() {
    engine::CheckpointShape shape;
    shape.vocab_size = toy_vocabulary().size;
    shape.eos = {toy_vocabulary().end};
    ENSURE(engine::write_checkpoint(folder.path(), shape, 5));
  }
  engine::TemporaryFolder folder;
};

WorldOptions real_pools(const Checkpoint& checkpoint, std::size_t places) {
  WorldOptions options;
  options.places.resize(places);
  for (std::size_t i = 0; i < places; ++i)
    options.places[i].role = i % 2 == 0 ? WorkerRole::kPrefill : WorkerRole::kDecode;
  options.limits.placement.local_prefill_max = {};
  options.make_engine = [&checkpoint](std::size_t, std::uint32_t) {
    return std::make_unique<RealEngine>(checkpoint.folder.path());
  };
  return options;
}

std::vector<std::string> bodies() {
  std::vector<std::string> out;
  for (const std::uint32_t words : {5U, 50U, 60U, 130U}) {
    out.push_back(body(BodyOptions{words, 20, true, R"(,"temperature":0,"logprobs":true)"}));
    out.push_back(body(BodyOptions{
        words, 30, true,
        fmt::format(R"(,"temperature":0.9,"seed":{},"frequency_penalty":0.7)", words)}));
  }
  return out;
}

}  // namespace

TEST_CASE("real engine: handed off, moved and broken off at random, its answers are those alone") {
  const Checkpoint checkpoint;
  std::vector<Answer> references;
  for (const std::string& each : bodies()) {
    WorldOptions options = real_pools(checkpoint, 1);
    options.places[0].role = WorkerRole::kMixed;
    World world(options);
    const auto asked = world.ask(0, each);
    REQUIRE(world.finish());
    REQUIRE(asked->finished());
    references.push_back(asked->answer());
    REQUIRE(references.back().done);
  }
  std::uint64_t moves = 0;
  std::uint64_t pulls = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    std::uint64_t digests[2];
    for (std::uint64_t& digest : digests) {
      Rng rng(seed);
      World world(real_pools(checkpoint, 4));
      std::uint64_t reads = 0;
      world.network.read_fault = [&](const RemoteSlice&) {
        return seed % 2 == 0 && ++reads % 13 == 0 ? testing::ReadFault::kFlip
                                                  : testing::ReadFault::kNone;
      };
      for (const std::string& each : bodies()) {
        world.ask(0, each);
        world.advance(milliseconds(rng.below(15)));
      }
      const auto gone = world.ask(0, bodies()[7], {.leaves_after = milliseconds(rng.below(60))});
      for (std::size_t kill = 0; kill < 3; ++kill) {
        world.advance(milliseconds(5 + rng.below(60)));
        const std::size_t place = rng.below(4);
        world.kill(place);
        world.start(place);
      }
      REQUIRE(world.finish());
      for (std::size_t i = 0; i < references.size(); ++i) {
        CAPTURE(i);
        const Asked& asked = *world.asked()[i];
        CAPTURE(asked.record.placement);
        CHECK(asked.answer().equals(references[i]));
        moves += asked.record.moves;
      }
      CHECK(gone->answer().begins(references[7]));
      for (std::size_t place = 0; place < 4; ++place)
        pulls += world.worker(place).handoffs().pulls_done;
      CHECK(world.settle() == "");
      CHECK(world.engines(0).violations().empty());
      digest = world.digest();
    }
    CHECK(digests[0] == digests[1]);
  }
  CHECK(moves > 0);
  CHECK(pulls > 0);
}

}  // namespace penstock::simulated
