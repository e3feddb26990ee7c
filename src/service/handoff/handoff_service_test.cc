// Whole handoffs between two or three fake processes, one fault each.
#include "service/handoff/handoff_service.h"

#include <doctest/doctest.h>

#include "service/handoff/test_worker.h"

namespace penstock::service {
namespace {

using handoff::Event;
using handoff::Reason;
using handoff::State;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FakeNetwork;
using testing::ReadFault;
using testing::SendFault;

const HandoffId kId{7, 8};

HandoffOptions options(std::uint64_t epoch) {
  HandoffOptions options;
  options.epoch = Epoch(epoch);
  return options;
}

struct Pair {
  explicit Pair(HandoffOptions prefill_options = options(1),
                HandoffOptions decode_options = options(2))
      : prefill(network, "fake:p", prefill_options), decode(network, "fake:d", decode_options) {}

  HandoffRef ref() const { return {Leg::kDecode, kId, "fake:p", Epoch(1)}; }
  // Computes and publishes blocks [first, first + n), `tokens` being all there are.
  void publish(std::uint32_t first, std::uint32_t n, std::uint32_t tokens) {
    const auto blocks = prefill.compute(1, first, n);
    REQUIRE(blocks.size() == n);
    prefill.publish(kId, first, blocks, tokens);
    for (const std::uint32_t block : blocks)
      prefill.release(block);  // the sequence's own reference: only the service holds them
  }
  void start_pull(std::uint32_t tokens) {
    into.clear();
    for (std::uint32_t i = 0; i < (tokens + kTestBlockTokens - 1) / kTestBlockTokens; ++i)
      into.push_back(decode.allocate().value());
    pull = decode.pull(ref(), tokens, into);
  }
  void advance(Duration duration) {
    network.clock.advance(duration);
    prefill.collect();
    decode.collect();
  }
  std::string failure() const {
    return pull->state() == Pull::State::kFailed ? pull->why() : "not failed";
  }
  std::uint64_t failed(Reason reason) const {
    return decode.service->counters().pulls_failed[static_cast<std::size_t>(reason)];
  }
  std::uint64_t hits(const TestWorker& worker, State state, Event event) const {
    return worker.service->counters().hits.of(state, event);
  }
  void all_zero() {
    for (TestWorker* worker : {&prefill, &decode}) {
      const HandoffCounters now = worker->service->counters();
      CHECK(now.owner.open == 0);
      CHECK(now.owner.parked == 0);
      CHECK(now.owner.blocks_held == 0);
      CHECK(now.pulls_running == 0);
      CHECK(now.reads_running == 0);
      CHECK(worker->held() == 0);
    }
  }

  FakeNetwork network;
  TestWorker prefill;
  TestWorker decode;
  std::vector<std::uint32_t> into;
  std::shared_ptr<Pull> pull;
};

EngineOutput first_output() {
  EngineOutput output;
  output.tokens = {{42, -1.5F, {}}};
  output.cached_tokens = 4;
  return output;
}

}  // namespace

TEST_CASE("KV is pulled while prefill goes on, and the close ends it with the first output") {
  for (const bool owner_serves : {true, false}) {
    Pair pair;
    pair.network.owner_serves = owner_serves;
    pair.prefill.port->announce(kId, "nano");
    pair.start_pull(10);
    pair.advance(milliseconds(100));
    CHECK(pair.hits(pair.decode, State::kAttaching, Event::kAttached) == 1);
    pair.publish(0, 2, 8);
    pair.advance(milliseconds(100));
    CHECK(pair.decode.service->counters().bytes_pulled == 2 * kTestBlockBytes);
    CHECK(pair.hits(pair.decode, State::kPulling, Event::kDrained) == 1);
    CHECK(pair.pull->state() == Pull::State::kRunning);
    pair.publish(2, 1, 10);
    pair.advance(milliseconds(100));
    CHECK(pair.hits(pair.decode, State::kPulling, Event::kAllRead) == 1);
    CHECK(pair.pull->state() == Pull::State::kRunning);
    CHECK(pair.prefill.held() == 3);
    pair.prefill.port->close(kId, first_output());
    pair.advance(milliseconds(100));
    REQUIRE(pair.pull->state() == Pull::State::kDone);
    CHECK(pair.pull->tokens() == 10);
    REQUIRE(pair.pull->first_output().has_value());
    CHECK(pair.pull->first_output()->tokens == first_output().tokens);
    CHECK(pair.decode.has(1, 10, pair.into));
    // Only the rows in use of the last block.
    CHECK(pair.decode.service->counters().bytes_pulled ==
          2 * kTestBlockBytes + 2 * kTestLayers * kTestRowBytes);
    CHECK(pair.prefill.service->counters().owner.released == 1);
    CHECK(pair.prefill.free_blocks() == 32);
    CHECK(pair.decode.wakes >= 1);
    pair.all_zero();
  }
}

TEST_CASE("an attach that comes before its announcement waits for it") {
  Pair pair;
  pair.start_pull(8);
  pair.advance(seconds(2));
  CHECK(pair.prefill.service->counters().owner.parked == 1);
  pair.prefill.port->announce(kId, "nano");
  pair.publish(0, 2, 8);
  pair.prefill.port->close(kId, std::nullopt);
  pair.advance(milliseconds(100));
  REQUIRE(pair.pull->state() == Pull::State::kDone);
  CHECK(!pair.pull->first_output().has_value());
  CHECK(pair.decode.has(1, 8, pair.into));
  pair.all_zero();
}

}  // namespace penstock::service
