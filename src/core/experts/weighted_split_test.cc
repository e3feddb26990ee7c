#include "core/experts/weighted_split.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/rng.h"

#include <doctest/doctest.h>

#include "tests/support/effort.h"

namespace penstock::experts {
namespace {

std::vector<double> zipf(std::size_t n, double exponent) {
  std::vector<double> loads(n);
  for (std::size_t i = 0; i < n; ++i)
    loads[i] = std::pow(static_cast<double>(i + 1), -exponent);
  return loads;
}

double sum(const std::vector<double>& values) {
  double total = 0;
  for (const double v : values)
    total += v;
  return total;
}

TEST_CASE("water finds its level") {
  // Expert 0 on all three GPUs, beside 1, 2 and 3: all GPUs come out even.
  const Shape shape{.experts = 4, .gpus = 3, .slots_per_gpu = 2};
  const WeightedSplit s = split(shape, {{0, 1, 0, 2, 0, 3}}, std::vector<double>{6, 1, 2, 3});
  for (const double gpu : s.gpus)
    CHECK(gpu == doctest::Approx(4));
  CHECK(s.shares[0] == doctest::Approx(0.5));
  CHECK(s.shares[2] == doctest::Approx(2.0 / 6));
  CHECK(s.shares[4] == doctest::Approx(1.0 / 6));
}

TEST_CASE("shares add up, and no single shift between two copies lowers the worse GPU") {
  Rng rng(21);
  for (int round = 0; round < 100; ++round) {
    const Shape shape{.experts = 6, .gpus = 5, .slots_per_gpu = 2};
    std::vector<double> loads;
    for (int e = 0; e < 6; ++e)
      loads.push_back(rng.below(6) == 0 ? 0 : std::exp(3 * rng.uniform()));
    const Placement placement = first_placement(shape);
    const WeightedSplit s = split(shape, placement, loads);
    std::vector<double> total(6);
    for (std::size_t slot = 0; slot < 10; ++slot) {
      REQUIRE(s.shares[slot] >= -1e-12);
      total[placement.slots[slot]] += s.shares[slot];
    }
    for (const double t : total)
      CHECK(t == doctest::Approx(1));
    CHECK(sum(s.gpus) == doctest::Approx(sum(loads)));
    CHECK(std::ranges::max(s.gpus) <= std::ranges::max(gpu_loads(shape, placement, loads)) + 1e-9);
    // Optimality: a copy that carries something never sits on a higher GPU than its sibling.
    for (std::size_t a = 0; a < 10; ++a)
      for (std::size_t b = 0; b < 10; ++b)
        if (placement.slots[a] == placement.slots[b] && s.shares[a] > 1e-6 &&
            loads[placement.slots[a]] > 0)
          CHECK(s.gpus[a / 2] <= s.gpus[b / 2] + 1e-3);
  }
}

TEST_CASE("between its floor and what equal shares reach, at two slots per GPU") {
  const Shape shape{.experts = 256, .gpus = 144, .slots_per_gpu = 2};
  struct Row {
    double zipf;
    double at_most;  // max/mean of the plan
    double floor;
    double equal_floor;
  };
  for (const Row& row : {Row{0.4, 1.11, 1.086, 1.085}, Row{0.6, 1.315, 1.291, 1.292},
                         Row{0.8, 1.6225, 1.620, 1.627}}) {
    CAPTURE(row.zipf);
    const std::vector<double> loads = zipf(256, row.zipf);
    const double mean = sum(loads) / 144;
    const auto plan = plan_weighted(shape, loads);
    REQUIRE(plan);
    CHECK(check(shape, plan->placement, Copies::kDistinct));
    const double peak = std::ranges::max(plan->split.gpus) / mean;
    CHECK(peak <= row.at_most);
    CHECK(peak >= row.floor - 1e-3);
    CHECK(weighted_floor(shape, loads) / mean == doctest::Approx(row.floor).epsilon(0.001));
    CHECK(equal_floor(shape, loads) / mean == doctest::Approx(row.equal_floor).epsilon(0.001));
    const Placement equal =
        plan_layer(shape, {.mean = loads, .deviations = {}, .windows = 0}, {.steps_max = 200})
            .value();
    CHECK(peak < max_over_mean(shape, equal, loads));
    if (kSanitized) break;  // a row takes it ten seconds
  }
}

TEST_CASE("the floor of weighted shares holds for every placement of small shapes") {
  const Shape shape{.experts = 5, .gpus = 3, .slots_per_gpu = 2};
  Rng rng(8);
  int beyond_counting = 0;
  for (int round = 0; round < 12; ++round) {
    std::vector<double> loads;
    for (int e = 0; e < 5; ++e)
      loads.push_back(std::exp(3 * rng.uniform()));
    double best = 1e300;
    Placement placement{std::vector<ExpertIndex>(6)};
    for (int code = 0; code < 15'625; ++code) {
      std::size_t present = 0;
      for (int slot = 0, rest = code; slot < 6; ++slot, rest /= 5) {
        placement.slots[static_cast<std::size_t>(slot)] = static_cast<ExpertIndex>(rest % 5);
        present |= std::size_t{1} << rest % 5;
      }
      if (present == 31)
        best = std::min(best, std::ranges::max(split(shape, placement, loads).gpus));
    }
    const double floor = weighted_floor(shape, loads);
    CHECK(floor <= best * (1 + 1e-4));
    std::ranges::sort(loads, std::greater<>{});
    // One spare slot: either the heaviest has two copies, or it is a peak itself.
    if (floor > std::max({sum(loads) / 3, loads[0] / 2, loads[1]}) * 1.001) ++beyond_counting;
  }
  CHECK(beyond_counting > 0);
}

TEST_CASE("hierarchical shapes keep their groups") {
  const Shape shape{.experts = 8, .gpus = 4, .slots_per_gpu = 3, .groups = 4, .nodes = 2};
  const auto plan = plan_weighted(shape, std::vector<double>{9, 1, 1, 1, 1, 1, 1, 5});
  REQUIRE(plan);
  CHECK(check(shape, plan->placement, Copies::kDistinct));
}

}  // namespace
}  // namespace penstock::experts
