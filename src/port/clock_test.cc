// Channel's deadlines: each pop has its own, and the timer behind them is armed as seldom as can
// be.
#include "port/clock.h"

#include <doctest/doctest.h>

#include "base/task.h"
#include "tests/support/virtual_clock.h"

namespace penstock {
namespace {

using namespace std::chrono_literals;

// A reader of one channel that notes what it gets, -1 for a deadline, and when.
struct Reader {
  testing::VirtualClock clock;
  Channel<int> channel{clock, 4};
  std::vector<std::pair<int, Instant>> got;
  Gate gate;

  Task<void> pop(Instant deadline) {
    const auto item = co_await channel.pop(deadline);
    got.emplace_back(item.value_or(-1), clock.now());
  }
  Instant at(Duration time) const { return Instant(time); }
};

TEST_CASE("a pop ends at its own deadline, after pops with earlier and later ones") {
  Reader r;
  for (const Duration deadline : {5s, 9s, 2s, 30s}) {
    r.gate.start(r.pop(r.at(deadline)));
    CHECK(r.channel.push(1));
    CHECK(r.clock.timers() == 1);
  }
  REQUIRE(r.got.size() == 4);
  // The timer of the third stands at 2 s and belongs to nobody; it must not end the fifth.
  r.gate.start(r.pop(r.at(20s)));
  r.clock.advance(19s);
  CHECK(r.got.size() == 4);
  r.clock.advance(1s);
  REQUIRE(r.got.size() == 5);
  CHECK(r.got[4] == std::pair{-1, r.at(20s)});
  CHECK(r.clock.timers() == 0);
}

TEST_CASE("an earlier deadline than the timer's is kept") {
  Reader r;
  r.gate.start(r.pop(r.at(30s)));
  CHECK(r.channel.push(1));
  r.gate.start(r.pop(r.at(3s)));
  r.clock.advance(10s);
  REQUIRE(r.got.size() == 2);
  CHECK(r.got[1] == std::pair{-1, r.at(3s)});
}

TEST_CASE("a channel that goes takes its timer along; a closed one gives nothing") {
  testing::VirtualClock clock;
  Gate gate;
  {
    Channel<int> channel(clock, 1);
    bool ended = false;
    gate.start([](Channel<int>& from, Instant deadline, bool& done) -> Task<void> {
      done = !co_await from.pop(deadline);
    }(channel, Instant(5s), ended));
    CHECK(clock.timers() == 1);
    channel.close();
    CHECK(ended);
    CHECK(!channel.push(1));
  }
  CHECK(clock.timers() == 0);
}

}  // namespace
}  // namespace penstock
