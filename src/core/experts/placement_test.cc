#include "core/experts/placement.h"

#include <algorithm>

#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock::experts {
namespace {

const Shape kShape{.experts = 4, .gpus = 3, .slots_per_gpu = 2};
const Placement kPlacement{{0, 1, 0, 2, 0, 3}};
const std::vector<double> kLoads{6, 1, 2, 3};

TEST_CASE("loads are split over copies") {
  CHECK(replica_counts(kPlacement, 4) == std::vector<std::uint32_t>{3, 1, 1, 1});
  CHECK(gpu_loads(kShape, kPlacement, kLoads) == std::vector<double>{3, 4, 5});
  CHECK(max_over_mean(kShape, kPlacement, kLoads) == doctest::Approx(1.25));
  CHECK(max_over_mean(kShape, kPlacement, std::vector<double>(4)) == 1);
}

TEST_CASE("the engines' logical map") {
  const LogicalMap map = logical_to_physical(kPlacement, 4);
  CHECK(map.copies_max == 3);
  CHECK(map.slots == std::vector<std::int32_t>{0, 2, 4, 1, -1, -1, 3, -1, -1, 5, -1, -1});
}

TEST_CASE("moves count weights that a GPU lacks") {
  CHECK(moved_copies(kShape, kPlacement, kPlacement) == 0);
  CHECK(moved_copies(kShape, kPlacement, {{1, 0, 2, 0, 3, 0}}) == 0);
  CHECK(moved_copies(kShape, kPlacement, {{0, 3, 0, 2, 0, 1}}) == 2);
  CHECK(moved_copies(kShape, kPlacement, {{2, 2, 0, 2, 0, 3}}) == 1);
}

TEST_CASE("bad shapes and placements are refused") {
  CHECK(check(kShape, kPlacement, Copies::kDistinct));
  CHECK(!check(kShape, {{0, 1, 0, 2, 0}}, Copies::kAny));
  CHECK(!check(kShape, {{0, 1, 0, 2, 0, 4}}, Copies::kAny));
  CHECK(!check(kShape, {{0, 1, 0, 2, 0, 2}}, Copies::kAny));
  CHECK(check(kShape, {{0, 0, 1, 2, 0, 3}}, Copies::kAny));
  CHECK(!check(kShape, {{0, 0, 1, 2, 0, 3}}, Copies::kDistinct));
  const Shape bad[] = {{},
                       {.experts = 7, .gpus = 3, .slots_per_gpu = 2},
                       {.experts = 4, .gpus = 3, .slots_per_gpu = 2, .groups = 3},
                       {.experts = 4, .gpus = 3, .slots_per_gpu = 2, .nodes = 2},
                       {.experts = 4, .gpus = 3, .slots_per_gpu = 2, .nodes = 0},
                       {.experts = 4, .gpus = 1U << 20, .slots_per_gpu = 1U << 20},
                       {.experts = 5000, .gpus = 100, .slots_per_gpu = 100}};
  for (const Shape& shape : bad)
    CHECK(!check(shape));
  const Shape two{.experts = 4, .gpus = 2, .slots_per_gpu = 2, .groups = 2, .nodes = 2};
  CHECK(check(two, {{2, 3, 1, 0}}, Copies::kDistinct));
  CHECK(!check(two, {{2, 1, 3, 0}}, Copies::kDistinct));
}

TEST_CASE("relabelling keeps the GPUs' contents and moves little") {
  Rng rng(1);
  for (int round = 0; round < 200; ++round) {
    const Shape shape{.experts = 8, .gpus = 6, .slots_per_gpu = 2};
    Placement current;
    for (std::size_t i = 0; i < shape.slots(); ++i)
      current.slots.push_back(static_cast<ExpertIndex>(i < 8 ? i : rng.below(8)));
    for (std::size_t i = shape.slots(); i-- > 1;)
      std::swap(current.slots[i], current.slots[rng.below(i + 1)]);
    if (doubled_copies(shape, current) != 0) continue;
    // The same GPUs in another order are the same placement.
    Placement shuffled = current;
    for (std::size_t g = shape.gpus; g-- > 1;) {
      const std::size_t other = rng.below(g + 1);
      for (std::size_t s = 0; s < 2; ++s)
        std::swap(shuffled.slots[2 * g + s], shuffled.slots[2 * other + (s + round) % 2]);
      if (g == other && round % 2 == 1) std::swap(shuffled.slots[2 * g], shuffled.slots[2 * g + 1]);
    }
    const Placement back = relabelled(shape, current, shuffled);
    CHECK(moved_copies(shape, current, back) == 0);
    auto a = gpu_loads(shape, back, std::vector<double>{1, 2, 4, 8, 16, 32, 64, 128});
    auto b = gpu_loads(shape, shuffled, std::vector<double>{1, 2, 4, 8, 16, 32, 64, 128});
    std::ranges::sort(a);
    std::ranges::sort(b);
    CHECK(a == b);
  }
}

}  // namespace
}  // namespace penstock::experts
