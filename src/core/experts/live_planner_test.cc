#include "core/experts/live_planner.h"

#include <algorithm>

#include <doctest/doctest.h>

namespace penstock::experts {
namespace {

constexpr Epoch kWorker(1);
constexpr Epoch kUs(100);

LivePlannerOptions options(Epoch planner = kUs) {
  LivePlannerOptions o;
  o.ranks = 4;
  o.slots_per_rank = 3;
  o.planner = planner;
  return o;
}

// A worker of two ranks with two layers of eight experts, as its engines would report.
struct Worker {
  Epoch epoch = kWorker;
  std::vector<ExpertReport> ranks = std::vector<ExpertReport>(2, {1, 2, 8, {}, {}, {}});

  Worker() {
    for (ExpertReport& rank : ranks)
      rank.picks.assign(16, 0);
  }
  // Expert `hot` of both layers gets half of all picks.
  void serve(std::uint64_t picks, std::size_t hot) {
    for (ExpertReport& rank : ranks) {
      for (std::size_t i = 0; i < rank.picks.size(); ++i)
        rank.picks[i] += i % 8 == hot ? picks * 7 : picks;
    }
  }
  void restart() {
    *this = Worker();
    epoch = Epoch(epoch.value + 1);
  }
  // What a rank does with a map; false when it would refuse it.
  bool push(std::size_t rank, const ExpertMap& map) {
    ExpertMap& held = ranks[rank].map;
    if (map.worker != epoch || map.version <= held.version || map.replaces != held.version)
      return false;
    held = map;
    return true;
  }
};

// One round; whether the map in use changed. What ranks lack is pushed.
bool round(LivePlanner& planner, Worker& worker) {
  REQUIRE(planner.observe(worker.epoch, worker.ranks));
  auto begun = planner.begin();
  REQUIRE(begun);
  bool changed = false;
  if (*begun) {
    while ((*begun)->step()) {
    }
    changed = planner.take(std::move(**begun).finish());
  }
  for (std::size_t rank = 0; rank < worker.ranks.size(); ++rank) {
    if (const auto map = planner.map_for(rank)) {
      CHECK(worker.push(rank, *map));
      CHECK(map->slots.size() == 2 * 12);
    }
  }
  return changed;
}

std::size_t copies(const ExpertMap& map, std::uint16_t expert) {
  return static_cast<std::size_t>(
      std::ranges::count(map.slots.begin(), map.slots.begin() + 12, expert));
}

}  // namespace

TEST_CASE("slots: as many as the experts need and a spare one, never more than experts") {
  LivePlannerOptions o = options();
  o.slots_per_rank = 0;
  CHECK(shape_for(o, 8).slots_per_gpu == 3);
  CHECK(shape_for(o, 9).slots_per_gpu == 4);
  o.ranks = 1;
  CHECK(shape_for(o, 8).slots_per_gpu == 8);
}

TEST_CASE("the first loads give a map, the same loads no other, other loads another") {
  LivePlanner planner(options());
  Worker worker;
  worker.serve(1000, 0);
  CHECK_FALSE(round(planner, worker));  // the first report is a beginning, not a window
  CHECK(planner.version() == 0);
  worker.serve(1000, 2);
  CHECK(round(planner, worker));
  CHECK(worker.ranks[0].map.version == 1);
  CHECK(worker.ranks[1].map == worker.ranks[0].map);
  CHECK(worker.ranks[0].map.planner == kUs);
  CHECK(copies(worker.ranks[0].map, 2) >= 3);
  worker.serve(1000, 2);
  CHECK_FALSE(round(planner, worker));
  CHECK_FALSE(round(planner, worker));  // idle: nothing to learn
  for (int i = 0; i < 4; ++i) {
    worker.serve(1000, 5);
    round(planner, worker);
  }
  CHECK(worker.ranks[0].map.version > 1);
  CHECK(worker.ranks[0].map.replaces > 0);
  CHECK(copies(worker.ranks[0].map, 5) >= 3);
}

TEST_CASE("a worker that was restarted gets the map again, and its counts are no window") {
  LivePlanner planner(options());
  Worker worker;
  round(planner, worker);
  worker.serve(1000, 2);
  REQUIRE(round(planner, worker));
  const ExpertMap before = worker.ranks[0].map;
  worker.restart();
  worker.serve(1'000'000, 7);  // since its start: belongs to no round
  CHECK_FALSE(round(planner, worker));
  CHECK(worker.ranks[1].map.version == before.version);
  CHECK(worker.ranks[1].map.slots == before.slots);
  CHECK(worker.ranks[1].map.worker == worker.epoch);
  CHECK(worker.ranks[1].map.replaces == 0);
  // Counts that fall under the same epoch are no window either.
  for (ExpertReport& rank : worker.ranks)
    rank.picks.assign(16, 5);
  CHECK_FALSE(round(planner, worker));
}

TEST_CASE("another planner's map is left alone until it has stood still, then built upon") {
  LivePlanner other(options(Epoch(7)));
  Worker worker;
  round(other, worker);
  worker.serve(1000, 2);
  REQUIRE(round(other, worker));
  const ExpertMap theirs = worker.ranks[0].map;
  LivePlanner planner(options());
  for (int i = 0; i < LivePlanner::kQuietRounds; ++i) {
    worker.serve(1000, 2);
    CHECK_FALSE(round(planner, worker));
    CHECK(planner.stands_back());
    CHECK(worker.ranks[0].map == theirs);
  }
  CHECK_FALSE(round(planner, worker));  // it has, and it is good as it is
  CHECK_FALSE(planner.stands_back());
  CHECK(planner.version() == theirs.version);
  for (int i = 0; i < 4; ++i) {
    worker.serve(1000, 5);
    round(planner, worker);
  }
  CHECK(worker.ranks[0].map.version > theirs.version);
  CHECK(worker.ranks[0].map.planner == kUs);
  // Now the first one stands back.
  CHECK_FALSE(round(other, worker));
  CHECK(other.stands_back());
}

TEST_CASE("a foreign map of another shape is replaced as a whole") {
  LivePlannerOptions wide = options(Epoch(7));
  wide.ranks = 8;
  wide.slots_per_rank = 2;
  LivePlanner other(wide);
  Worker worker;
  REQUIRE(other.observe(worker.epoch, worker.ranks));
  worker.serve(1000, 2);
  REQUIRE(other.observe(worker.epoch, worker.ranks));
  auto begun = other.begin();
  REQUIRE((begun && *begun));
  while ((*begun)->step()) {
  }
  REQUIRE(other.take(std::move(**begun).finish()));
  for (std::size_t rank = 0; rank < 2; ++rank)
    REQUIRE(worker.push(rank, *other.map_for(rank)));
  LivePlanner planner(options());
  for (int i = 0; i <= LivePlanner::kQuietRounds; ++i) {
    worker.serve(1000, 2);
    round(planner, worker);
  }
  CHECK(worker.ranks[0].map.version == 2);
  CHECK(worker.ranks[0].map.ranks == 4);
}

TEST_CASE("what can't be planned is said, and nothing is sent") {
  LivePlannerOptions o = options();
  o.slots_per_rank = 1;
  Worker worker;
  LivePlanner narrow(o);
  CHECK(narrow.observe(worker.epoch, worker.ranks).error().message.find("too few") !=
        std::string::npos);
  CHECK_FALSE(narrow.map_for(0));
  LivePlanner planner(options());
  CHECK(!planner.observe(worker.epoch, {}));
  worker.ranks[1].experts = 4;
  CHECK(!planner.observe(worker.epoch, worker.ranks));
  ExpertReport dense;
  CHECK(!planner.observe(worker.epoch, {&dense, 1}));
  const auto begun = planner.begin();
  REQUIRE(begun);
  CHECK_FALSE(*begun);
}

TEST_CASE("a round that ran out of time still gives a complete map") {
  LivePlanner planner(options());
  Worker worker;
  REQUIRE(planner.observe(worker.epoch, worker.ranks));
  worker.serve(1000, 2);
  REQUIRE(planner.observe(worker.epoch, worker.ranks));
  auto begun = planner.begin();
  REQUIRE((begun && *begun));
  CHECK(planner.take(std::move(**begun).finish()));  // not a single step
  const auto map = planner.map_for(0);
  REQUIRE(map);
  for (std::uint16_t expert = 0; expert < 8; ++expert)
    CHECK(copies(*map, expert) >= 1);
}

}  // namespace penstock::experts
