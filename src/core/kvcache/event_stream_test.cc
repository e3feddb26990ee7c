#include "core/kvcache/event_stream.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock::kvcache {
namespace {

using Do = EventStream::Do;

// Checksum of a message of one run of the engine.
std::uint64_t sum(std::uint64_t run, std::uint64_t sequence) {
  return run * 1'000'000 + sequence;
}

// Follows from the start, without a replay that brings anything.
EventStream following() {
  EventStream stream(true);
  CHECK_FALSE(stream.connected());
  CHECK(stream.wanted_replay() == 0);
  stream.replay_asked();
  CHECK_FALSE(stream.replay_ended());
  return stream;
}

TEST_CASE("messages in order are applied; a gap is filled by a replay from the last one") {
  EventStream stream = following();
  CHECK(stream.live(0, sum(1, 0)) == Do::kApply);
  CHECK(stream.live(1, sum(1, 1)) == Do::kApply);
  CHECK(stream.live(4, sum(1, 4)) == Do::kSkip);
  CHECK(stream.wanted_replay() == 1);
  stream.replay_asked();
  CHECK(stream.wanted_replay() == std::nullopt);
  CHECK(stream.replayed(1, sum(1, 1)) == Do::kSkip);
  CHECK(stream.replayed(2, sum(1, 2)) == Do::kApply);
  CHECK(stream.live(5, sum(1, 5)) == Do::kSkip);
  CHECK(stream.replayed(3, sum(1, 3)) == Do::kApply);
  CHECK(stream.replayed(4, sum(1, 4)) == Do::kApply);
  // Message 5 went by meanwhile.
  CHECK_FALSE(stream.replay_ended());
  CHECK(stream.wanted_replay() == 4);
  stream.replay_asked();
  CHECK(stream.replayed(4, sum(1, 4)) == Do::kSkip);
  CHECK(stream.replayed(5, sum(1, 5)) == Do::kApply);
  CHECK_FALSE(stream.replay_ended());
  CHECK(stream.live(6, sum(1, 6)) == Do::kApply);
  CHECK(stream.counts().gaps == 1);
  CHECK(stream.counts().filled == 1);
  CHECK(stream.counts().purges == 0);
}

TEST_CASE("a replay that begins too late purges") {
  EventStream stream = following();
  CHECK(stream.live(0, sum(1, 0)) == Do::kApply);
  CHECK(stream.live(9, sum(1, 9)) == Do::kSkip);
  stream.replay_asked();
  CHECK(stream.replayed(7, sum(1, 7)) == Do::kPurge);
  CHECK(stream.replayed(8, sum(1, 8)) == Do::kApply);
  CHECK(stream.replayed(9, sum(1, 9)) == Do::kApply);
  CHECK_FALSE(stream.replay_ended());
  CHECK(stream.counts().purges == 1);
}

TEST_CASE("a replay that fails purges, and following begins anew") {
  EventStream stream = following();
  CHECK(stream.live(0, sum(1, 0)) == Do::kApply);
  CHECK(stream.live(2, sum(1, 2)) == Do::kSkip);
  stream.replay_asked();
  CHECK(stream.replay_failed());
  CHECK(stream.live(3, sum(1, 3)) == Do::kApply);
  CHECK(stream.counts().filled == 0);
}

TEST_CASE("without anybody to ask, a gap and a new connection purge") {
  EventStream stream(false);
  CHECK_FALSE(stream.connected());
  CHECK(stream.wanted_replay() == std::nullopt);
  CHECK(stream.live(5, sum(1, 5)) == Do::kApply);
  CHECK(stream.live(7, sum(1, 7)) == Do::kPurge);
  CHECK(stream.live(8, sum(1, 8)) == Do::kApply);
  CHECK(stream.connected());
  CHECK(stream.live(9, sum(1, 9)) == Do::kApply);
  CHECK(stream.counts().gaps == 1);
  CHECK(stream.counts().purges == 2);
}

TEST_CASE("numbers that go back are a restart") {
  EventStream stream = following();
  CHECK(stream.live(0, sum(1, 0)) == Do::kApply);
  CHECK(stream.live(1, sum(1, 1)) == Do::kApply);
  CHECK(stream.live(0, sum(2, 0)) == Do::kPurge);
  CHECK(stream.live(1, sum(2, 1)) == Do::kApply);
  CHECK(stream.live(2, sum(2, 2)) == Do::kApply);
  // Heard late: what came before is asked for.
  CHECK(stream.live(1, sum(3, 1)) == Do::kPurgeAndSkip);
  CHECK(stream.wanted_replay() == 0);
  CHECK(stream.counts().restarts == 2);
}

TEST_CASE("a restarted engine that is as far as the old one is told by its last message") {
  EventStream stream = following();
  CHECK(stream.live(0, sum(1, 0)) == Do::kApply);
  CHECK(stream.live(1, sum(1, 1)) == Do::kApply);
  CHECK_FALSE(stream.connected());
  CHECK(stream.wanted_replay() == 1);
  stream.replay_asked();
  CHECK(stream.replayed(1, sum(2, 1)) == Do::kPurgeAndSkip);
  CHECK(stream.replayed(2, sum(2, 2)) == Do::kSkip);
  CHECK(stream.wanted_replay() == 0);
  stream.replay_asked();
  for (std::uint64_t i = 0; i < 3; ++i)
    CHECK(stream.replayed(i, sum(2, i)) == Do::kApply);
  CHECK_FALSE(stream.replay_ended());
  CHECK(stream.live(3, sum(2, 3)) == Do::kApply);

  // One that is not as far has nothing to replay.
  CHECK_FALSE(stream.connected());
  stream.replay_asked();
  CHECK(stream.replay_ended());
  CHECK(stream.wanted_replay() == 0);
}

TEST_CASE("a new connection to the same run goes on where it was") {
  EventStream stream = following();
  CHECK(stream.live(0, sum(1, 0)) == Do::kApply);
  CHECK_FALSE(stream.connected());
  stream.replay_asked();
  CHECK(stream.replayed(0, sum(1, 0)) == Do::kSkip);
  CHECK(stream.replayed(1, sum(1, 1)) == Do::kApply);
  CHECK_FALSE(stream.replay_ended());
  CHECK(stream.live(2, sum(1, 2)) == Do::kApply);
  CHECK(stream.counts().purges == 0);
}

TEST_CASE("a message that can't be read is a loss") {
  EventStream stream = following();
  CHECK(stream.live(0, sum(1, 0)) == Do::kApply);
  CHECK(stream.live(1, sum(1, 1)) == Do::kApply);
  stream.lost();
  CHECK(stream.counts().purges == 1);
  CHECK(stream.live(2, sum(1, 2)) == Do::kApply);
}

// A publisher with a short memory, a wire that loses live messages and breaks, and engines that
// restart: what has been applied since the last purge is always one run's, without a hole, and when
// all is quiet it ends with the engine's last message.
struct Publisher {
  std::uint64_t run = 1;
  std::uint64_t next = 0;
  std::deque<std::uint64_t> kept;

  void publish() {
    kept.push_back(next++);
    if (kept.size() > 6) kept.pop_front();
  }
  void restart() {
    ++run;
    next = 0;
    kept.clear();
  }
};

struct Follower {
  EventStream stream;
  std::vector<std::uint64_t> held;  // checksums

  void take(Do what, std::uint64_t checksum) {
    if (what == Do::kPurge || what == Do::kPurgeAndSkip) held.clear();
    if (what == Do::kApply || what == Do::kPurge) held.push_back(checksum);
  }
  void ask(const Publisher& from, bool fails) {
    const auto wanted = stream.wanted_replay();
    if (!wanted) return;
    stream.replay_asked();
    if (fails) {
      if (stream.replay_failed()) held.clear();
      return;
    }
    for (const std::uint64_t sequence : from.kept) {
      if (sequence < *wanted) continue;
      take(stream.replayed(sequence, sum(from.run, sequence)), sum(from.run, sequence));
    }
    if (stream.replay_ended()) held.clear();
  }
};

TEST_CASE("whatever is lost, what is held is one run's messages without a hole") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    Publisher engine;
    Follower follower{EventStream(seed % 4 != 0), {}};
    follower.stream.connected();
    for (int step = 0; step < 300; ++step) {
      const auto dice = rng.below(100);
      if (dice < 2) {
        engine.restart();
        if (follower.stream.connected()) follower.held.clear();
      } else if (dice < 5) {
        if (follower.stream.connected()) follower.held.clear();
      } else if (dice < 75) {
        engine.publish();
        const std::uint64_t sequence = engine.next - 1;
        if (rng.below(8) != 0)
          follower.take(follower.stream.live(sequence, sum(engine.run, sequence)),
                        sum(engine.run, sequence));
      } else {
        follower.ask(engine, rng.below(10) == 0);
      }
      const auto& held = follower.held;
      for (std::size_t i = 1; i < held.size(); ++i)
        REQUIRE(held[i] == held[i - 1] + 1);
    }
    for (int quiet = 0; quiet < 4; ++quiet) {
      engine.publish();
      const std::uint64_t sequence = engine.next - 1;
      follower.take(follower.stream.live(sequence, sum(engine.run, sequence)),
                    sum(engine.run, sequence));
      for (int i = 0; i < 3; ++i)
        follower.ask(engine, false);
    }
    REQUIRE_FALSE(follower.held.empty());
    CHECK(follower.held.back() == sum(engine.run, engine.next - 1));
  }
}

}  // namespace
}  // namespace penstock::kvcache
