#include "core/experts/planner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/rng.h"
#include "core/experts/baseline.h"
#include "core/experts/load_generator.h"
#include "core/experts/load_window.h"

#include <doctest/doctest.h>

namespace penstock::experts {
namespace {

const Shape kShape{.experts = 96, .gpus = 16, .slots_per_gpu = 7};

LoadGeneratorOptions generator(std::uint64_t seed) {
  return {.experts = kShape.experts, .window_picks = 1e7, .seed = seed};
}

LayerLoads of(std::vector<double> mean) {
  return {.mean = std::move(mean), .deviations = {}, .windows = 0};
}

RoundPlan run(const Shape& shape, std::vector<Placement> current, std::vector<LayerLoads> loads,
              const PlannerOptions& options = {}) {
  auto planner = RoundPlanner::start(shape, std::move(current), std::move(loads), options);
  REQUIRE(planner);
  while (planner->step()) {
  }
  return std::move(*planner).finish();
}

std::vector<Placement> placements(const RoundPlan& round) {
  std::vector<Placement> all;
  for (const LayerPlan& layer : round.layers)
    all.push_back(layer.placement);
  return all;
}

TEST_CASE("a first placement has no moves before it and is balanced") {
  LoadGenerator loads(generator(1));
  const RoundPlan round = run(kShape, {}, {of(loads.next()), of(loads.next())});
  CHECK(round.complete);
  REQUIRE(round.layers.size() == 2);
  for (const LayerPlan& layer : round.layers) {
    CHECK(layer.verdict == LayerVerdict::kPlanned);
    CHECK(check(kShape, layer.placement, Copies::kDistinct));
    CHECK(layer.after <= 1.01);
  }
}

TEST_CASE("a balanced layer is left alone") {
  LoadGenerator generator_(generator(2));
  const auto loads = generator_.next();
  const auto first = placements(run(kShape, {}, {of(loads)}));
  const RoundPlan second = run(kShape, first, {of(loads)});
  CHECK(second.layers[0].verdict == LayerVerdict::kBalanced);
  CHECK(second.layers[0].placement == first[0]);
  CHECK(second.moves == 0);
}

TEST_CASE("moves are bounded, by layer and by round, and still gain") {
  std::vector<LayerLoads> before;
  std::vector<LayerLoads> after;
  for (std::uint64_t layer = 0; layer < 6; ++layer) {
    LoadGenerator g(generator(10 + layer));
    before.push_back(of(g.next()));
    for (int i = 0; i < 9; ++i)
      (void)g.next();
    after.push_back(of(g.next()));
  }
  const auto current = placements(run(kShape, {}, before));
  double last = 1e9;
  for (const std::size_t limit : {2U, 8U, 32U}) {
    const RoundPlan round =
        run(kShape, current, after, {.layer_moves_max = limit, .round_moves_max = 3 * limit});
    std::size_t moves = 0;
    double worst = 0;
    for (std::size_t i = 0; i < round.layers.size(); ++i) {
      const LayerPlan& layer = round.layers[i];
      CHECK(check(kShape, layer.placement, Copies::kDistinct));
      CHECK(moved_copies(kShape, current[i], layer.placement) <= layer.moves);
      CHECK(layer.moves <= limit);
      CHECK(layer.after <= layer.before);
      CHECK((layer.verdict == LayerVerdict::kPlanned) == (layer.moves > 0));
      moves += layer.moves;
      worst += layer.after;
    }
    CHECK(moves == round.moves);
    CHECK(round.moves <= 3 * limit);
    CHECK(round.moves > 0);
    CHECK(worst < last);
    last = worst;
  }
}

TEST_CASE("layers that gain less wait when the round's moves are spent") {
  // Layer 0 is off a little, layer 1 a lot; there are moves for one of them.
  const Shape shape{.experts = 4, .gpus = 2, .slots_per_gpu = 2};
  const Placement bad{{0, 1, 2, 3}};
  const RoundPlan round = run(shape, {bad, bad}, {of({6, 6, 5, 5}), of({9, 9, 1, 1})},
                              {.layer_moves_max = 4, .round_moves_max = 2});
  CHECK(round.layers[0].verdict == LayerVerdict::kWaits);
  CHECK(round.layers[0].placement == bad);
  CHECK(round.layers[1].verdict == LayerVerdict::kPlanned);
  CHECK(round.layers[1].after == doctest::Approx(1));
  CHECK(round.moves == 2);
}

TEST_CASE("a gain that is too small is not worth moving weights") {
  const Shape shape{.experts = 4, .gpus = 2, .slots_per_gpu = 2};
  const RoundPlan round = run(shape, {{{0, 1, 2, 3}}}, {of({1.02, 1.02, 1, 1})},
                              {.balanced_below = 1.001, .gain_min = 0.05});
  CHECK(round.layers[0].verdict == LayerVerdict::kNoGain);
  CHECK(round.moves == 0);
}

TEST_CASE("the baseline's doubled copies are mended, whatever they cost") {
  const Shape shape{.experts = 3, .gpus = 2, .slots_per_gpu = 2};
  const Placement doubled{{0, 0, 1, 2}};
  const RoundPlan round = run(shape, {doubled}, {of({2, 1, 1})}, {.layer_moves_max = 1});
  CHECK(round.layers[0].verdict == LayerVerdict::kPlanned);
  CHECK(check(shape, round.layers[0].placement, Copies::kDistinct));
}

TEST_CASE("the watchdog's stop leaves what was not reached as it was") {
  std::vector<LayerLoads> loads;
  for (std::uint64_t layer = 0; layer < 5; ++layer) {
    LoadGenerator g(generator(30 + layer));
    loads.push_back(of(g.next()));
  }
  std::vector<Placement> current(5, first_placement(kShape));
  for (int steps = 0; steps < 12; ++steps) {
    auto planner = RoundPlanner::start(kShape, current, loads, {});
    REQUIRE(planner);
    bool more = true;
    for (int i = 0; i < steps && more; ++i)
      more = planner->step();
    const RoundPlan round = std::move(*planner).finish();
    CHECK(round.complete == !more);
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(check(kShape, round.layers[i].placement, Copies::kDistinct));
      if (round.layers[i].verdict == LayerVerdict::kNotReached)
        CHECK(round.layers[i].placement == current[i]);
    }
  }
  // Stopped at once, with nothing placed yet.
  auto planner = RoundPlanner::start(kShape, {}, loads, {});
  const RoundPlan none = std::move(*planner).finish();
  CHECK(!none.complete);
  for (const LayerPlan& layer : none.layers)
    CHECK(check(kShape, layer.placement, Copies::kDistinct));
}

TEST_CASE("hierarchical rounds keep groups on nodes") {
  const Shape shape{.experts = 32, .gpus = 8, .slots_per_gpu = 5, .groups = 8, .nodes = 2};
  Rng rng(40);
  std::vector<Placement> current{first_placement(shape)};
  for (int round = 0; round < 20; ++round) {
    std::vector<double> loads;
    for (int e = 0; e < 32; ++e)
      loads.push_back(std::exp(2 * rng.uniform()));
    const RoundPlan plan = run(shape, current, {of(loads)}, {.layer_moves_max = 6});
    REQUIRE(check(shape, plan.layers[0].placement, Copies::kDistinct));
    CHECK(plan.layers[0].moves <= 6);
    current = placements(plan);
  }
}

TEST_CASE("bad rounds are refused") {
  CHECK(!RoundPlanner::start(kShape, {first_placement(kShape)}, {}, {}));
  CHECK(!RoundPlanner::start(kShape, {}, {of({1, 2})}, {}));
  CHECK(!RoundPlanner::start(kShape, {Placement{{1, 2}}}, {of(std::vector<double>(96))}, {}));
}

TEST_CASE("planned on the past and judged on the next window: better than the baseline") {
  double ours = 0;
  double theirs = 0;
  double oracle = 0;
  int windows = 0;
  const Shape shape{.experts = 384, .gpus = 64, .slots_per_gpu = 7};
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    LoadGenerator g({.seed = seed});
    LoadWindow window(shape.experts);
    Placement mine;
    Placement base;
    for (int t = 0; t < 30; ++t) {
      const auto loads = g.next();
      if (t >= 10) {
        ours += max_over_mean(shape, mine, loads);
        theirs += max_over_mean(shape, base, loads);
        oracle +=
            max_over_mean(shape, plan_layer(shape, of(loads), {.steps_max = 0}).value(), loads);
        ++windows;
      }
      REQUIRE(window.push(loads));
      mine = plan_layer(shape, window.forecast(), {.steps_max = 0}).value();
      base = plan_baseline(shape, loads).value();
    }
  }
  ours /= windows;
  theirs /= windows;
  oracle /= windows;
  CHECK(oracle <= 1.003);
  CHECK(ours <= 1.05);
  CHECK((ours - 1) / (theirs - 1) <= 0.9);
}

TEST_CASE("the window: newest counts most, busy windows count alike, memory is bounded") {
  LoadWindow window(2, 1);
  CHECK(window.forecast().mean == std::vector<double>{0, 0});
  REQUIRE(window.push(std::vector<double>{3, 1}));
  REQUIRE(window.push(std::vector<double>{100, 300}));
  const LayerLoads loads = window.forecast();
  // Shares 3/4 and 1/4 with weights 1/2 and 1.
  const double total = loads.mean[0] + loads.mean[1];
  CHECK(loads.mean[0] / total == doctest::Approx((0.25 + 0.5 * 0.75) / 1.5));
  REQUIRE(loads.windows == 1);
  CHECK(loads.deviations[0] == doctest::Approx(-0.5 * total));
  CHECK(loads.deviations[1] == doctest::Approx(0.5 * total));
  for (int i = 0; i < 100; ++i)
    REQUIRE(window.push(std::vector<double>{0, 0}));
  CHECK(window.windows() == kWindowsMax + 1);
  CHECK(window.forecast().windows == 0);
  CHECK(!window.push(std::vector<double>{1}));
  CHECK(!window.push(std::vector<double>{1, -1}));
}

}  // namespace
}  // namespace penstock::experts
