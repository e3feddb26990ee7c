#include "core/routing/cost_model.h"

#include <cmath>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

namespace penstock::routing {
namespace {

using std::chrono::milliseconds;

const CostSeeds kSeeds{
    .prefill = {0.01, 2e-5, 5.8e-11},
    .step = {0.008, 4e-5, 2e-10},
    .load = {FlowCoefficients{}, {1e-5, 20e9}, {1e-4, 6e9}, {1e-3, 6e9}, {2e-3, 6e9}},
    .transfer_same_zone = {1e-4, 25e9},
    .transfer_other_zone = {5e-3, 2e9},
    .prefill_moe = {1.05, 0.2},
    .decode_moe = {1.09, 0.3},
};

TEST_CASE("predictions start at the profile's laws") {
  const CostModels models(kSeeds);
  CHECK(to_seconds(models.prefill(Tokens(1'000'000), Tokens(0))) ==
        doctest::Approx(0.01 + 20 + 5.8e-11 * 1e6 * 5e5).epsilon(1e-6));
  CHECK(to_seconds(models.step(100, Tokens(1'000'000))) ==
        doctest::Approx(0.008 + 0.004 + 2e-4).epsilon(1e-6));
  CHECK(to_seconds(models.load(Bytes(20'000'000'000), KvTier::kHost)) ==
        doctest::Approx(1.00001).epsilon(1e-6));
  CHECK(to_seconds(models.transfer(Bytes(2'000'000'000), {0, 1})) ==
        doctest::Approx(1.005).epsilon(1e-6));
  CHECK(models.transfer(Bytes(1'000'000'000), {3, 3}) <
        models.transfer(Bytes(1'000'000'000), {3, 4}));
}

TEST_CASE("no work costs nothing, a way that does not exist costs for ever") {
  const CostModels models(kSeeds);
  CHECK(models.prefill(Tokens(0), Tokens(5000)) == Duration::zero());
  CHECK(models.step(0, Tokens(5000)) == Duration::zero());
  CHECK(models.load(Bytes(0), KvTier::kDisk) == Duration::zero());
  CHECK(models.load(Bytes(1), KvTier::kDevice) == Duration::max());
  CHECK(CostModels(CostSeeds{}).transfer(Bytes(1), {0, 0}) == Duration::max());
}

TEST_CASE("a group's step is its slowest rank, idle ranks run dummy steps") {
  const StepCoefficients c{0.01, 1e-4, 1e-9};
  const std::vector<StepLoad> ranks{{10, 100'000}, {0, 0}, {20, 50'000}};
  CHECK(group_step_seconds(c, ranks, 1) == doctest::Approx(0.01 + 20e-4 + 5e-5));
  CHECK(group_step_seconds(c, ranks, 1.09) == doctest::Approx(1.09 * (0.01 + 20e-4 + 5e-5)));
  // A worker that reports less than the mean is not believed.
  CHECK(group_step_seconds(c, ranks, 0.5) == group_step_seconds(c, ranks, 1));
  CHECK(group_step_seconds(c, std::vector<StepLoad>(4), 1.09) == 0);
  CHECK(group_step_seconds(c, {}, 1) == 0);

  const PrefillCoefficients p{0.01, 2e-5, 5e-11};
  const std::vector<ChunkLoad> chunks{{8192, 0}, {4096, 500'000}, {0, 100}};
  CHECK(group_prefill_seconds(p, chunks, 1) ==
        doctest::Approx(std::max(prefill_seconds(p, 8192, 0), prefill_seconds(p, 4096, 500'000))));
}

TEST_CASE("chunks fill the time budget and never exceed it") {
  Rng rng(7);
  for (int i = 0; i < 5000; ++i) {
    const PrefillCoefficients c{rng.below(4) == 0 ? 0 : 0.02 * rng.uniform(),
                                rng.below(4) == 0 ? 0 : 1e-4 * rng.uniform(),
                                rng.below(4) == 0 ? 0 : 1e-9 * rng.uniform()};
    const auto context = static_cast<std::int64_t>(rng.below(1'000'000));
    const double budget = 0.2 * rng.uniform();
    const auto most = static_cast<std::int64_t>(rng.below(20'000));
    const std::int64_t n = chunk_within(c, context, budget, most);
    REQUIRE(n >= 0);
    REQUIRE(n <= most);
    const auto seconds = [&](std::int64_t fresh) {
      return prefill_seconds(c, static_cast<double>(fresh), static_cast<double>(context));
    };
    if (n > 0) REQUIRE(seconds(n) <= budget * (1 + 1e-12));
    if (n < most) REQUIRE(seconds(n + 1) > budget * (1 - 1e-12));
  }
  CHECK(chunk_within({0.01, 1e-5, 0}, 0, 0.01, 100) == 0);  // the base alone
  CHECK(chunk_within({}, 0, 1, 100) == 100);                // nothing known: all
  CHECK(chunk_within({}, 0, 1, -5) == 0);
}

TEST_CASE("moe_lb samples are at least 1 and keep the mean") {
  Rng rng(8);
  double sum = 0;
  for (int i = 0; i < 20'000; ++i) {
    const double lb = sample({1.09, 0.5}, rng);
    REQUIRE(lb >= 1);
    sum += lb;
  }
  CHECK(sum / 20'000 == doctest::Approx(1.09).epsilon(0.002));
  CHECK(sample({1.09, 0}, rng) == 1.09);
  CHECK(sample({}, rng) == 1);
}

TEST_CASE("group steps teach the law of one rank, whatever the others do") {
  const StepCoefficients truth{0.02, 1e-4, 1e-9};
  CostModels models(kSeeds);
  Rng rng(9);
  std::vector<StepLoad> ranks(8);
  for (int i = 0; i < 4000; ++i) {
    for (StepLoad& rank : ranks)
      rank = {static_cast<std::int64_t>(rng.below(200)),
              static_cast<std::int64_t>(rng.below(4'000'000))};
    models.observe_group_step(ranks, to_duration(group_step_seconds(truth, ranks, 1.09)));
  }
  CHECK(to_seconds(models.step(128, Tokens(1'000'000))) ==
        doctest::Approx(step_seconds(truth, 128, 1e6)).epsilon(0.03));
  CHECK(models.error(CostLaw::kStep).absolute < 0.03);
  CHECK(models.error(CostLaw::kStep).observations == 4000);
  models.observe_group_step(std::vector<StepLoad>(8), milliseconds(5));  // nobody had work
  CHECK(models.error(CostLaw::kStep).observations == 4000);
}

TEST_CASE("group chunks teach prefill") {
  const PrefillCoefficients truth{0.02, 4e-5, 2e-10};
  CostModels models(kSeeds);
  Rng rng(10);
  std::vector<ChunkLoad> ranks(8);
  for (int i = 0; i < 4000; ++i) {
    for (ChunkLoad& rank : ranks)
      rank = {static_cast<std::int64_t>(rng.below(8192)),
              static_cast<std::int64_t>(rng.below(200'000))};
    models.observe_group_prefill(ranks, to_duration(group_prefill_seconds(truth, ranks, 1.05)));
  }
  CHECK(to_seconds(models.prefill(Tokens(4096), Tokens(100'000))) ==
        doctest::Approx(prefill_seconds(truth, 4096, 100'000)).epsilon(0.03));
}

TEST_CASE("zone pairs learn apart; beyond the limit they share") {
  CostModels models(kSeeds);
  const Bytes size(1'000'000'000);
  const Duration before = models.transfer(size, {1, 2});
  for (int i = 0; i < 300; ++i)
    models.observe_transfer(size, {0, 1}, milliseconds(100));
  CHECK(to_seconds(models.transfer(size, {0, 1})) == doctest::Approx(0.1).epsilon(0.02));
  CHECK(models.transfer(size, {1, 2}) == before);
  CHECK(models.transfer(size, {1, 0}) == before);  // directions differ

  for (std::uint16_t i = 0; i < 2 * CostModels::kZonePairsMax; ++i)
    for (int n = 0; n < 10; ++n)
      models.observe_transfer(size, {static_cast<std::uint16_t>(i + 10), 5}, milliseconds(50));
  CHECK(models.transfer(size, {60'000, 5}) < before);  // learned through the shared model
  CHECK(to_seconds(models.transfer(size, {0, 1})) == doctest::Approx(0.1).epsilon(0.02));
}

TEST_CASE("loads are learned per tier") {
  CostModels models(kSeeds);
  for (int i = 0; i < 300; ++i) {
    models.observe_load(Bytes(100'000'000 + i), KvTier::kCluster, milliseconds(100));
    models.observe_load(Bytes(10'000 + i), KvTier::kCluster, milliseconds(3));
  }
  CHECK(to_seconds(models.load(Bytes(100'000'000), KvTier::kCluster)) ==
        doctest::Approx(0.1).epsilon(0.05));
  CHECK(to_seconds(models.load(Bytes(10'000), KvTier::kCluster)) ==
        doctest::Approx(0.003).epsilon(0.05));
  CHECK(models.load(Bytes(1'000'000), KvTier::kHost) ==
        CostModels(kSeeds).load(Bytes(1'000'000), KvTier::kHost));
  CHECK(models.error(CostLaw::kLoad).observations == 600);
}

TEST_CASE("impossible observations change nothing") {
  CostModels models(kSeeds);
  models.observe_prefill(Tokens(0), Tokens(0), milliseconds(1));
  models.observe_prefill(Tokens(10), Tokens(-5), milliseconds(1));
  models.observe_prefill(Tokens(10), Tokens(0), milliseconds(0));
  models.observe_step(-1, Tokens(10), milliseconds(1));
  models.observe_load(Bytes(-1), KvTier::kHost, milliseconds(1));
  models.observe_transfer(Bytes(5), {0, 0}, -milliseconds(1));
  CHECK(models.prefill_coefficients() == kSeeds.prefill);
  CHECK(models.step_coefficients() == kSeeds.step);
  CHECK(models.error(CostLaw::kPrefill) == FitError{});
}

}  // namespace
}  // namespace penstock::routing
