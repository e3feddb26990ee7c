#include "sim/hit_loads.h"

#include "evaluate/generate.h"
#include "sim/cluster.h"

#include <doctest/doctest.h>

namespace penstock::sim {
namespace {

// Two prefill and two decode hosts of two ranks. A token is a megabyte, the store gives 1 GB/s.
routing::Profile slow_store() {
  routing::Profile p;
  p.name = "slow store";
  p.prefill_pool = {
      .ranks = 4, .group_ranks = 2, .host_ranks = 2, .kv_tokens = 1'000'000, .requests_max = 64};
  p.decode_pool = {
      .ranks = 4, .group_ranks = 4, .host_ranks = 2, .kv_tokens = 1'000'000, .requests_max = 256};
  p.costs.prefill = {0.002, 1e-5, 1e-11};
  p.costs.step = {0.005, 2e-5, 1e-10};
  p.costs.load[std::to_underlying(KvTier::kHost)] = {0.0001, 50e9};
  p.costs.load[std::to_underlying(KvTier::kDisk)] = {0.001, 2e9};
  p.costs.load[std::to_underlying(KvTier::kCluster)] = {0.002, 1e9};
  p.costs.transfer_same_zone = {0.0003, 10e9};
  p.costs.transfer_other_zone = {0.002, 0.5e9};
  p.kv_bytes_per_token = 1'000'000;
  p.context_tokens_max = 1'000'000;
  return p;
}

Instant at(double s) {
  return Instant{} + routing::to_duration(s);
}

TEST_CASE("hits: one after the other over a host's link, the store's part through decode hosts") {
  const routing::Profile profile = slow_store();
  std::vector<bool> usable{true};
  HitLoads alone(profile, 100, 1, false, usable);
  HitLoads spread(profile, 100, 1, true, usable);
  const TierHit found{{0, 0, 3}};
  const auto hit = spread.hit(found, 250);
  CHECK(hit.own == 0);
  CHECK(hit.store_bytes == Bytes(250'000'000));
  CHECK(hit.seconds() == doctest::Approx(0.252));
  Instant there{};
  for (HitLoads* loads : {&alone, &spread}) {
    CHECK(loads->wait(0, hit, at(1)) == 0);
    CHECK(!loads->take(0, hit, at(1), there));  // an idle link needs no help
    CHECK(there == at(1.252));
  }
  CHECK(alone.wait(0, hit, at(1)) == doctest::Approx(0.252));
  CHECK(!alone.take(0, hit, at(1), there));
  CHECK(there == at(1.504));
  // Two decode hosts take the next two; then the own link and theirs are equally busy.
  for (int i = 0; i < 2; ++i) {
    CHECK(spread.wait(0, hit, at(1)) == doctest::Approx(0.0003).epsilon(0.01));
    CHECK(spread.take(0, hit, at(1), there));
    CHECK(routing::to_seconds(there - at(1)) == doctest::Approx(0.2523).epsilon(0.001));
  }
  CHECK(!spread.take(0, hit, at(1), there));
  CHECK(there == at(1.504));
  // The other prefill host's own link is free.
  CHECK(!spread.take(1, hit, at(1), there));
  CHECK(there == at(1.252));
  // Nobody reads through an engine that has gone.
  usable[0] = false;
  CHECK(!spread.take(1, hit, at(1), there));
}

TEST_CASE("hits: what memory and disk of a host have is read there, beside the rest") {
  const routing::Profile profile = slow_store();
  const std::vector<bool> usable{true};
  HitLoads loads(profile, 100, 1, true, usable);
  const auto hit = loads.hit({{1, 2, 3}}, 599);
  CHECK(hit.own == doctest::Approx(0.0001 + 0.1 / 50 + 0.001 + 0.1));
  CHECK(hit.store_bytes == Bytes(299'000'000));
  CHECK(hit.store == doctest::Approx(0.002 + 0.299));
  CHECK(loads.hit({{1, 2, 3}}, 50).store == 0);
  Instant there{};
  CHECK(!loads.take(0, hit, at(0), there));
  const double queue = hit.seconds();
  CHECK(loads.wait(0, hit, at(0)) + hit.seconds() == doctest::Approx(queue + hit.own));
  CHECK(loads.take(0, hit, at(0), there));  // the store's part is there before the own part
  CHECK(routing::to_seconds(there - at(0)) == doctest::Approx(queue + hit.own));
}

TEST_CASE("a slow store: loads through decode hosts bring first tokens sooner") {
  routing::Profile profile = slow_store();
  profile.kv_bytes_per_token = 20'000;
  auto trace = evaluate::generate("agents", {.requests_per_second = 30, .seconds = 60, .seed = 3});
  REQUIRE(trace);
  const auto arrivals = evaluate::scale(*trace, {});
  ClusterOptions options{.warmup = std::chrono::seconds(15)};
  const auto alone = simulate(profile, *trace, arrivals, options);
  options.loads_through_decode = true;
  const auto spread = simulate(profile, *trace, arrivals, options);
  REQUIRE(alone);
  REQUIRE(spread);
  CHECK(alone->loads_through_decode == 0);
  CHECK(spread->loads_through_decode > 100);
  CHECK(spread->finished == spread->arrivals);
  CHECK(spread->ttft.quantile(0.9) < 0.2 * alone->ttft.quantile(0.9));
  CHECK(alone->served_share() < 0.8);
  CHECK(spread->served_share() > 0.99);
  CHECK(simulate(profile, *trace, arrivals, options)->digest == spread->digest);
}

}  // namespace
}  // namespace penstock::sim
