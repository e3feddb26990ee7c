// Whole handoffs between two or three fake processes, one fault each.
#include "service/handoff/handoff_service.h"

#include <doctest/doctest.h>

#include "tests/support/handoff_worker.h"

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

TEST_CASE("memory that was freed and used again is never taken for KV") {
  // The owner's process goes on without the handoff while a read is between its two looks.
  for (const bool owner_serves : {true, false}) {
    CAPTURE(owner_serves);
    Pair pair;
    pair.network.owner_serves = owner_serves;
    pair.prefill.port->announce(kId, "nano");
    pair.publish(0, 2, 8);
    pair.prefill.port->close(kId, std::nullopt);
    int reads = 0;
    pair.network.in_mid_read = [&](const RemoteSlice& slice) {
      if (++reads != 4) return;
      // As a broken owner would: the block is given to somebody else at once.
      pair.prefill.bump(slice.block);
      std::memset(pair.prefill.payload(slice.block), 0x77, kTestBlockBytes);
    };
    pair.start_pull(8);
    pair.advance(milliseconds(500));
    CHECK(reads >= 4);
    CHECK(pair.failed(Reason::kStale) == 1);
    CHECK(pair.hits(pair.decode, State::kPulling, Event::kStale) == 1);
    CHECK(pair.failure().find("something else") != std::string::npos);
    pair.all_zero();
  }
  // Reused, and by chance under the same generation: the bytes tell.
  Pair pair;
  pair.prefill.port->announce(kId, "nano");
  pair.publish(0, 2, 8);
  pair.network.in_mid_read = [&](const RemoteSlice& slice) {
    std::memset(pair.prefill.payload(slice.block), 0x77, kTestBlockBytes);
  };
  pair.start_pull(8);
  pair.advance(milliseconds(500));
  CHECK(pair.failed(Reason::kCorrupt) == 1);
  CHECK(pair.decode.service->counters().slices_corrupt >= 2);
  pair.all_zero();
}

TEST_CASE("a slice that is corrupt once is read again, with an alarm") {
  Pair pair;
  int flips = 0;
  pair.network.read_fault = [&](const RemoteSlice&) {
    return ++flips == 3 ? ReadFault::kFlip : ReadFault::kNone;
  };
  pair.prefill.port->announce(kId, "nano");
  pair.publish(0, 2, 8);
  pair.prefill.port->close(kId, std::nullopt);
  pair.start_pull(8);
  pair.advance(milliseconds(100));
  REQUIRE(pair.pull->state() == Pull::State::kDone);
  CHECK(pair.decode.has(1, 8, pair.into));
  CHECK(pair.decode.service->counters().slices_corrupt == 1);
  pair.all_zero();
}

TEST_CASE("a prefill worker that stops shows within three seconds; its blocks are freed after") {
  Pair pair;
  pair.prefill.port->announce(kId, "nano");
  pair.publish(0, 1, 4);
  pair.start_pull(8);
  pair.advance(milliseconds(1500));
  pair.prefill.transport.stop();
  pair.network.clock.advance(milliseconds(1500));
  CHECK(pair.pull->state() == Pull::State::kRunning);
  pair.network.clock.advance(milliseconds(1600));
  CHECK(pair.failed(Reason::kSilent) == 1);
  pair.decode.collect();
  CHECK(pair.decode.held() == 0);
  pair.prefill.transport.resume();
  pair.advance(milliseconds(100));
  // The reader released it before it closed the connection.
  CHECK(pair.prefill.service->counters().owner.released == 1);
  pair.all_zero();
}

TEST_CASE("a decode worker that stops loses its lease; the blocks wait until it can't read") {
  Pair pair;
  pair.prefill.port->announce(kId, "nano");
  pair.publish(0, 2, 8);
  pair.network.read_fault = [](const RemoteSlice&) { return ReadFault::kStuck; };
  pair.start_pull(8);
  pair.advance(milliseconds(100));
  pair.decode.transport.stop();
  pair.network.clock.advance(seconds(11));
  pair.prefill.collect();
  CHECK(pair.hits(pair.prefill, State::kOpen, Event::kExpireHeld) == 1);
  CHECK(pair.prefill.held() == 2);
  pair.network.clock.advance(seconds(2));
  pair.prefill.collect();
  CHECK(pair.hits(pair.prefill, State::kQuarantine, Event::kOver) == 1);
  CHECK(pair.prefill.held() == 0);
  pair.decode.transport.resume();
  pair.network.read_fault = [](const RemoteSlice&) { return ReadFault::kNone; };
  pair.advance(milliseconds(100));
  CHECK(pair.pull->state() == Pull::State::kFailed);
  pair.all_zero();
}

TEST_CASE("a decode worker that stopped for a moment goes on where it was") {
  Pair pair;
  pair.prefill.port->announce(kId, "nano");
  pair.publish(0, 1, 4);
  pair.start_pull(8);
  pair.advance(milliseconds(200));
  pair.decode.transport.stop();
  pair.network.clock.advance(seconds(5));  // longer than a silent owner is borne
  pair.decode.transport.resume();
  pair.advance(milliseconds(100));
  REQUIRE(pair.pull->state() == Pull::State::kRunning);
  pair.publish(1, 1, 8);
  pair.prefill.port->close(kId, std::nullopt);
  pair.advance(milliseconds(100));
  CHECK(pair.pull->state() == Pull::State::kDone);
  CHECK(pair.decode.has(1, 8, pair.into));
  pair.all_zero();
}

TEST_CASE("a prefill worker that dies fails its pulls once it is noticed; its next run refuses") {
  Pair pair;
  pair.prefill.port->announce(kId, "nano");
  pair.publish(0, 1, 4);
  pair.start_pull(8);
  pair.advance(milliseconds(200));
  pair.prefill.transport.kill();
  pair.network.clock.advance(milliseconds(400));
  pair.decode.collect();
  // It has tried to connect once more, and found nobody.
  CHECK(pair.hits(pair.decode, State::kWaiting, Event::kLostOnce) == 1);
  CHECK(pair.failed(Reason::kUnreachable) == 1);
  TestWorker next(pair.network, "fake:p", options(77));
  pair.start_pull(8);
  pair.network.clock.advance(milliseconds(100));
  CHECK(pair.failed(Reason::kRestarted) == 1);
  CHECK(pair.failure().find("000000000000004d") != std::string::npos);
  pair.decode.collect();
  CHECK(pair.decode.held() == 0);
}

TEST_CASE("a cut connection is made again, and only what is missing is read") {
  Pair pair;
  pair.prefill.port->announce(kId, "nano");
  pair.publish(0, 2, 8);
  pair.start_pull(16);
  pair.advance(milliseconds(200));
  pair.decode.transport.cut_all();
  pair.advance(milliseconds(200));
  CHECK(pair.hits(pair.prefill, State::kOpen, Event::kReaderLost) == 1);
  pair.publish(2, 2, 16);
  pair.prefill.port->close(kId, first_output());
  pair.advance(milliseconds(200));
  REQUIRE(pair.pull->state() == Pull::State::kDone);
  CHECK(pair.decode.has(1, 16, pair.into));
  CHECK(pair.decode.service->counters().bytes_pulled == 4 * kTestBlockBytes);
  pair.all_zero();
}

TEST_CASE("a client that leaves: stop and withdraw, in any order and state, free everything") {
  // Both legs end after `steps` of the handoff; who is told first alternates.
  for (int steps = 0; steps < 6; ++steps)
    for (const bool stop_first : {true, false}) {
      CAPTURE(steps);
      CAPTURE(stop_first);
      Pair pair;
      pair.start_pull(8);
      if (steps >= 1) pair.advance(milliseconds(50));
      if (steps >= 2) pair.prefill.port->announce(kId, "nano");
      if (steps >= 3) pair.publish(0, 1, 4);
      if (steps >= 4) pair.advance(milliseconds(50));
      if (steps >= 5) pair.publish(1, 1, 8);
      for (const bool stop : {stop_first, !stop_first}) {
        if (stop)
          pair.decode.port->stop(pair.pull);
        else
          pair.prefill.port->withdraw(kId, "the client left");
        pair.advance(milliseconds(1));
      }
      pair.advance(milliseconds(20));
      CHECK(pair.pull->state() == Pull::State::kFailed);
      CHECK(pair.decode.service->counters().reads_running == 0);
      CHECK(pair.prefill.held() == 0);
      CHECK(pair.decode.held() == 0);
      pair.decode.port->stop(pair.pull);
      pair.prefill.port->withdraw(kId, "again");
      pair.advance(milliseconds(20));
      pair.all_zero();
    }
}

TEST_CASE("a withdrawal reaches the reader with its reason, and the blocks are free at once") {
  Pair pair;
  pair.prefill.port->announce(kId, "nano");
  pair.publish(0, 2, 8);
  pair.network.read_fault = [](const RemoteSlice&) { return ReadFault::kStuck; };
  pair.start_pull(8);
  pair.advance(milliseconds(20));
  CHECK(pair.decode.service->counters().reads_running == 6);
  pair.prefill.port->withdraw(kId, "out of memory");
  pair.advance(milliseconds(5));
  CHECK(pair.failed(Reason::kWithdrawn) == 1);
  CHECK(pair.failure().find("out of memory") != std::string::npos);
  CHECK(pair.hits(pair.prefill, State::kQuarantine, Event::kLastReleased) == 1);
  pair.all_zero();
}

TEST_CASE("mismatches are refused with both sides' values, nonsense of our engine at once") {
  Pair pair;
  pair.prefill.port->announce(kId, "nano");
  pair.publish(0, 2, 8);
  pair.into = {pair.decode.allocate().value()};
  pair.pull = pair.decode.pull(pair.ref(), 4, pair.into, "other");
  pair.advance(milliseconds(50));
  CHECK(pair.failed(Reason::kMismatch) == 1);
  CHECK(pair.failure().find("\"nano\"") != std::string::npos);
  CHECK(pair.failure().find("\"other\"") != std::string::npos);
  for (const std::uint32_t tokens : {0U, 5U}) {
    pair.pull = pair.decode.pull(pair.ref(), tokens, pair.into);
    pair.advance(milliseconds(50));
    CHECK(pair.failure().find("into 1 blocks") != std::string::npos);
  }
  CHECK(pair.failed(Reason::kLimit) == 2);
  CHECK(pair.hits(pair.decode, State::kNone, Event::kRefusePull) == 2);
  CHECK(pair.decode.held() == 0);
}

TEST_CASE("messages that the transport has no room for leave later, in order") {
  Pair pair;
  int refused = 0;
  pair.network.send_fault = [&](std::string_view) {
    return ++refused % 2 == 0 ? SendFault::kNone : SendFault::kOverloaded;
  };
  pair.prefill.port->announce(kId, "nano");
  pair.start_pull(16);
  pair.advance(milliseconds(200));
  for (std::uint32_t block = 0; block < 4; block += 1) {
    pair.publish(block, 1, (block + 1) * kTestBlockTokens);
    pair.advance(milliseconds(5));
  }
  pair.prefill.port->close(kId, first_output());
  pair.advance(seconds(1));
  REQUIRE(pair.pull->state() == Pull::State::kDone);
  CHECK(pair.decode.has(1, 16, pair.into));
  pair.advance(seconds(1));
  pair.all_zero();
}

TEST_CASE("a peer that speaks nonsense is cut off, whichever side it is") {
  for (const bool owner_speaks : {true, false}) {
    CAPTURE(owner_speaks);
    Pair pair;
    pair.prefill.port->announce(kId, "nano");
    pair.publish(0, 1, 4);
    pair.start_pull(8);
    pair.advance(milliseconds(50));
    TestWorker& speaker = owner_speaks ? pair.prefill : pair.decode;
    TestWorker& listener = owner_speaks ? pair.decode : pair.prefill;
    SUBCASE("no message") {
      speaker.transport.say(speaker.transport.peers().at(0), "what?");
    }
    SUBCASE("the other side's message") {
      const std::string message = owner_speaks
                                      ? handoff::encode(handoff::Renew{kId, 1, 1})
                                      : handoff::encode(handoff::Renewed{1, 1, seconds(10)});
      speaker.transport.say(speaker.transport.peers().at(0), message);
    }
    pair.advance(milliseconds(50));
    CHECK(listener.service->counters().peers_cut == 1);
    if (owner_speaks) CHECK(pair.failed(Reason::kProtocol) == 1);
    pair.decode.port->stop(pair.pull);
    pair.prefill.port->withdraw(kId, "enough");
    pair.advance(milliseconds(50));
    pair.all_zero();
  }
}

TEST_CASE("pulls from one worker share a connection, which is closed when nobody needs it") {
  Pair pair;
  std::vector<std::shared_ptr<Pull>> pulls;
  for (std::uint64_t i = 0; i < 5; ++i) {
    const HandoffId id{i, i};
    pair.prefill.port->announce(id, "nano");
    const auto blocks = pair.prefill.compute(i, 0, 2);
    pair.prefill.publish(id, 0, blocks, 8);
    pair.prefill.port->close(id, std::nullopt);
    const std::vector<std::uint32_t> into = {pair.decode.allocate().value(),
                                             pair.decode.allocate().value()};
    pulls.push_back(pair.decode.pull({Leg::kDecode, id, "fake:p", Epoch(1)}, 8, into));
  }
  pair.advance(milliseconds(200));
  for (const auto& pull : pulls)
    CHECK(pull->state() == Pull::State::kDone);
  CHECK(pair.decode.transport.connections() == 1);
  CHECK(pair.decode.service->counters().links == 1);
  pair.advance(seconds(29));
  CHECK(pair.decode.transport.connections() == 1);
  pair.advance(seconds(3));
  CHECK(pair.decode.transport.connections() == 0);
  CHECK(pair.prefill.transport.connections() == 0);
  pair.all_zero();
}

TEST_CASE("checksums of a large publish are computed in pieces, with turns of others between") {
  HandoffOptions small = options(1);
  small.sum_bytes_max = 2 * kTestBlockBytes;
  Pair pair(small);
  pair.prefill.port->announce(kId, "nano");
  pair.start_pull(64);
  pair.advance(milliseconds(50));
  std::vector<std::uint64_t> messages;
  pair.publish(0, 16, 64);
  // Between two turns other posted work has its own.
  for (int i = 0; i < 3; ++i)
    pair.prefill.transport.clock().post([&] { messages.push_back(pair.network.messages); });
  pair.network.clock.run();
  REQUIRE(messages.size() == 3);
  CHECK(pair.network.messages > messages.back());
  pair.prefill.port->close(kId, std::nullopt);
  pair.advance(milliseconds(100));
  REQUIRE(pair.pull->state() == Pull::State::kDone);
  CHECK(pair.decode.has(1, 64, pair.into));
}

TEST_CASE("a service that ends gives the blocks of its pulls back and does nothing after") {
  Pair pair;
  pair.prefill.port->announce(kId, "nano");
  pair.publish(0, 2, 8);
  pair.network.read_fault = [](const RemoteSlice&) { return ReadFault::kStuck; };
  pair.start_pull(8);
  pair.advance(milliseconds(50));
  const std::uint64_t wakes = pair.decode.wakes;
  pair.decode.service.reset();
  CHECK(pair.pull->state() == Pull::State::kFailed);
  CHECK(pair.decode.wakes == wakes + 1);
  CHECK(pair.decode.transport.reads_pending() == 0);
  CHECK(pair.decode.transport.connections() == 0);
  pair.network.clock.advance(seconds(20));
  pair.prefill.collect();
  CHECK(pair.prefill.held() == 0);
  CHECK(pair.prefill.service->counters().owner.open == 0);
}

TEST_CASE("ranks of one worker have their own pools, and get their own blocks back") {
  Pair pair;
  TestMemory memory(8);
  RankMemory rank;
  rank.pool = {-1, memory.bytes.data(), memory.bytes.size(), 8 * 8, kTestBlockBytes, 8};
  rank.payloads = memory.bytes.data() + 8 * 8;
  rank.model = "nano";
  rank.layers = kTestLayers;
  rank.block_tokens = kTestBlockTokens;
  rank.slice_bytes = kTestSliceBytes;
  rank.kv_format = "test";
  HandoffPort& second = pair.prefill.service->add_rank(rank, [] {});
  for (std::size_t at = 0; at < kTestBlockBytes; ++at)
    rank.payloads[5 * kTestBlockBytes + at] = test_byte(1, 0, at);
  second.announce(kId, "nano");
  const HandoffBlock block{5, 0};
  second.publish(kId, 0, {&block, 1}, 4);
  second.close(kId, std::nullopt);
  // The same id is no handoff of the first rank.
  pair.prefill.port->withdraw(kId, "not mine");
  pair.start_pull(4);
  pair.advance(milliseconds(100));
  REQUIRE(pair.pull->state() == Pull::State::kDone);
  CHECK(pair.decode.has(1, 4, pair.into));
  CHECK(second.take_freed() == std::vector<std::uint32_t>{5});
  CHECK(pair.prefill.port->take_freed().empty());
  pair.all_zero();
}

TEST_CASE("a pull without room yet keeps the KV, reads nothing, and reads all when there is room") {
  Pair pair;
  pair.prefill.port->announce(kId, "nano");
  pair.pull = pair.decode.pull(pair.ref(), 10, {});
  pair.publish(0, 3, 10);
  pair.prefill.port->close(kId, first_output());
  // Far beyond lease and unclaimed time: the reader renews.
  for (int i = 0; i < 60; ++i)
    pair.advance(seconds(1));
  CHECK(pair.pull->state() == Pull::State::kRunning);
  CHECK(pair.prefill.held() == 3);
  CHECK(pair.decode.service->counters().bytes_pulled == 0);
  std::vector<std::uint32_t> to;
  for (int i = 0; i < 3; ++i)
    to.push_back(pair.decode.allocate().value());
  pair.decode.fill(pair.pull, to);
  pair.advance(milliseconds(100));
  REQUIRE(pair.pull->state() == Pull::State::kDone);
  CHECK(pair.decode.has(1, 10, to));
  pair.all_zero();
}

TEST_CASE("a pull that is stopped before it has room frees the prefill's blocks at once") {
  Pair pair;
  pair.prefill.port->announce(kId, "nano");
  pair.pull = pair.decode.pull(pair.ref(), 10, {});
  pair.publish(0, 3, 10);
  pair.prefill.port->close(kId, first_output());
  pair.advance(milliseconds(100));
  CHECK(pair.prefill.held() == 3);
  pair.decode.port->stop(pair.pull);
  pair.advance(milliseconds(20));
  pair.all_zero();
}

TEST_CASE("room for a pull that is over, or that doesn't fit, comes back") {
  Pair pair;
  pair.start_pull(10);
  const std::vector<std::uint32_t> to = pair.into;
  pair.decode.port->stop(pair.pull);
  pair.advance(milliseconds(100));
  pair.decode.fill(pair.pull, to);
  pair.advance(milliseconds(100));
  pair.all_zero();

  pair.prefill.port->announce(kId, "nano");
  pair.pull = pair.decode.pull(pair.ref(), 10, {});
  pair.advance(milliseconds(100));
  pair.decode.fill(pair.pull, {to[0]});
  pair.advance(milliseconds(100));
  CHECK(pair.failure().find("blocks that don't fit") != std::string::npos);
  CHECK(pair.decode.held() == 0);
}

}  // namespace penstock::service
