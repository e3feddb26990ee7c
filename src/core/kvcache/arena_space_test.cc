#include "core/kvcache/arena_space.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock::kvcache {
namespace {

struct Extent {
  std::uint64_t first;
  std::uint64_t units;
};

// The naive arena: one flag a unit, and every rule spelled out by scanning.
class NaiveArena {
 public:
  explicit NaiveArena(std::uint64_t units) : taken_(units, false) {}

  std::vector<Extent> holes() const {
    std::vector<Extent> found;
    for (std::uint64_t unit = 0; unit < taken_.size(); ++unit) {
      if (taken_[unit]) continue;
      if (found.empty() || found.back().first + found.back().units != unit)
        found.push_back({unit, 0});
      ++found.back().units;
    }
    return found;
  }
  std::optional<std::uint64_t> best_fit(std::uint64_t units) const {
    std::optional<Extent> best;
    for (const Extent& hole : holes())
      if (hole.units >= units && (!best || hole.units < best->units)) best = hole;
    return best ? std::optional(best->first) : std::nullopt;
  }
  void mark(Extent extent, bool taken) {
    for (std::uint64_t unit = extent.first; unit < extent.first + extent.units; ++unit) {
      REQUIRE(taken_[unit] != taken);
      taken_[unit] = taken;
    }
  }

 private:
  std::vector<bool> taken_;
};

}  // namespace

TEST_CASE("best fit takes the smallest hole that is large enough, and neighbours join again") {
  ArenaSpace space(10);
  CHECK(space.take(3) == 0);
  CHECK(space.take(2) == 3);
  CHECK(space.take(4) == 5);
  space.give(0, 3);
  CHECK(space.take(1) == 9);  // the hole of one, not the hole of three
  CHECK(!space.take(4));
  space.give(5, 4);
  space.give(3, 2);  // joins both sides
  CHECK(space.free_extents() == 1);
  CHECK(space.longest_free() == 9);
  CHECK(space.take(9) == 0);
  CHECK(!space.fits(1));
}

TEST_CASE("an arena of nothing gives nothing") {
  ArenaSpace space(0);
  CHECK(!space.take(1));
  CHECK(space.longest_free() == 0);
}

TEST_CASE("random taking and giving agrees with a flag per unit") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    const std::uint64_t units = 40 + rng.below(200);
    ArenaSpace space(units);
    NaiveArena naive(units);
    std::vector<Extent> live;
    for (int step = 0; step < 1500; ++step) {
      if (live.empty() || rng.below(100) < 55) {
        const std::uint64_t wanted = 1 + rng.below(rng.below(4) == 0 ? units : 9);
        const auto expected = naive.best_fit(wanted);
        const auto got = space.take(wanted);
        REQUIRE(got == expected);
        if (!got) continue;
        live.push_back({*got, wanted});
        naive.mark(live.back(), true);
      } else {
        const std::size_t which = rng.below(live.size());
        space.give(live[which].first, live[which].units);
        naive.mark(live[which], false);
        live[which] = live.back();
        live.pop_back();
      }
      const auto holes = naive.holes();
      std::uint64_t total = 0;
      std::uint64_t longest = 0;
      for (const Extent& hole : holes) {
        total += hole.units;
        longest = std::max(longest, hole.units);
      }
      REQUIRE(space.free_units() == total);
      REQUIRE(space.free_extents() == holes.size());
      REQUIRE(space.longest_free() == longest);
    }
  }
}

}  // namespace penstock::kvcache
