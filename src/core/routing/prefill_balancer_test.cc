#include "core/routing/prefill_balancer.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/routing/quota_queue.h"

#include <doctest/doctest.h>

namespace penstock::routing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Instant at(int second) {
  return Instant{} + seconds(second);
}

// --- tiers

TEST_CASE("requests fall into tiers by their total context") {
  const Tiers tiers({});
  CHECK(tiers.tier_of(0) == 0);
  CHECK(tiers.tier_of(16'383) == 0);
  CHECK(tiers.tier_of(16'384) == 1);
  CHECK(tiers.tier_of(65'535) == 1);
  CHECK(tiers.tier_of(65'536) == 2);
  CHECK(tiers.tier_of(262'144) == 3);
  CHECK(tiers.tier_of(1'000'000) == 3);
}

TEST_CASE("engines follow the demand of the last round, in quota seconds") {
  Tiers tiers({});
  tiers.advance(at(0), 8);
  for (std::size_t tier = 0; tier < kTiers; ++tier)
    CHECK(tiers.engines_of(tier) == 2);
  // Many short requests of 0.01 s, few long ones of 6 s: as much time each.
  for (int i = 0; i < 600; ++i)
    tiers.demand(0, 0.01);
  tiers.demand(3, 6);
  CHECK(!tiers.advance(at(9), 8));  // the round is not over
  CHECK(tiers.advance(at(10), 8));
  CHECK(tiers.engines_of(0) == 4);
  CHECK(tiers.engines_of(3) == 4);
  CHECK(tiers.engines_of(1) == 1);  // no demand, still a place
  CHECK(tiers.engines_of(2) == 1);
  CHECK(tiers.arrivals_per_second(0) == doctest::Approx(60));
  CHECK(tiers.quota_per_request(3) == doctest::Approx(6));
}

TEST_CASE("hysteresis: a small shift moves nothing, a large one does") {
  Tiers tiers({});
  const auto round = [&](int end, double first, double second) {
    tiers.demand(0, first);
    tiers.demand(1, second);
    return tiers.advance(at(end), 4);
  };
  tiers.advance(at(0), 4);
  CHECK(round(10, 5, 5));
  CHECK(tiers.engines_of(0) == 2);
  CHECK(!round(20, 5.4, 4.6));
  CHECK(!round(30, 4.7, 5.3));
  CHECK(round(40, 15, 1));
  CHECK(tiers.engines_of(0) >= 3);
}

TEST_CASE(
    "with any demand and any engines: every tier served, every engine used, neighbours only") {
  Rng rng(5);
  for (int run = 0; run < 200; ++run) {
    Tiers tiers({});
    std::size_t engines = rng.below(12);
    for (int round = 0; round < 10; ++round) {
      if (rng.below(3) == 0) engines = rng.below(12);
      for (std::size_t tier = 0; tier < kTiers; ++tier)
        if (rng.below(2) == 0) tiers.demand(tier, std::exp(10 * rng.uniform() - 5));
      tiers.advance(at(10 * round), engines);
      REQUIRE(tiers.engines() == engines);
      if (engines == 0) continue;
      for (std::size_t tier = 0; tier < kTiers; ++tier)
        REQUIRE(tiers.engines_of(tier) >= 1);
      for (std::size_t engine = 0; engine < engines; ++engine) {
        int first = -1;
        int last = -1;
        int count = 0;
        for (std::size_t tier = 0; tier < kTiers; ++tier)
          if (tiers.prefers(engine, tier)) {
            if (first < 0) first = static_cast<int>(tier);
            last = static_cast<int>(tier);
            ++count;
          }
        REQUIRE(count >= 1);
        REQUIRE(count == last - first + 1);
      }
    }
  }
}

// --- quota queue

const PrefillCoefficients kCost{0.008, 2e-5, 5.8e-11};

TEST_CASE("chunks are FIFO, fill the budget, and shrink with context") {
  QuotaQueue queue;
  queue.push({RequestId(1), 0, 1000});
  queue.push({RequestId(2), 0, 100'000});
  queue.push({RequestId(3), 0, 10});
  Chunk chunk;
  queue.next_chunk(kCost, 0.1, 1 << 20, chunk);
  REQUIRE(chunk.parts.size() == 2);
  CHECK(chunk.parts[0].id == RequestId(1));
  CHECK(chunk.parts[0].last);
  CHECK(chunk.parts[1].id == RequestId(2));
  CHECK(!chunk.parts[1].last);
  CHECK(chunk.seconds <= 0.1 + 1e-9);
  CHECK(chunk.seconds > 0.0999);
  std::int64_t last = chunk.parts[1].fresh + 1000;
  std::int64_t context = chunk.parts[1].fresh;
  while (true) {
    queue.next_chunk(kCost, 0.1, 1 << 20, chunk);
    REQUIRE(chunk.parts[0].id == RequestId(2));
    CHECK(chunk.parts[0].context == context);
    context += chunk.parts[0].fresh;
    if (chunk.parts[0].last) break;
    CHECK(chunk.parts[0].fresh < last);
    last = chunk.parts[0].fresh;
  }
  CHECK(context == 100'000);
  CHECK(chunk.parts[1].id == RequestId(3));
  queue.next_chunk(kCost, 0.1, 1 << 20, chunk);
  CHECK(chunk.parts.empty());
  CHECK(chunk.seconds == 0);
}

TEST_CASE("a budget too small for anything still makes progress; the token limit holds") {
  QuotaQueue queue;
  queue.push({RequestId(1), 500'000, 5});
  Chunk chunk;
  queue.next_chunk(kCost, 0.001, 100, chunk);
  REQUIRE(chunk.parts.size() == 1);
  CHECK(chunk.parts[0].fresh == 1);
  queue.push({RequestId(2), 0, 1000});
  queue.next_chunk(kCost, 10, 50, chunk);
  REQUIRE(chunk.parts.size() == 2);
  CHECK(chunk.parts[0].fresh + chunk.parts[1].fresh == 50);
  CHECK(queue.outstanding_tokens() == 1000 - 46);
  CHECK(queue.remove(RequestId(2)));
  CHECK(!queue.remove(RequestId(2)));
  CHECK(queue.outstanding_seconds(kCost) == 0);
}

TEST_CASE("a fully hit prompt passes through without compute") {
  QuotaQueue queue;
  queue.push({RequestId(1), 5000, 0});
  queue.push({RequestId(2), 0, 10});
  Chunk chunk;
  queue.next_chunk(kCost, 0.1, 100, chunk);
  REQUIRE(chunk.parts.size() == 2);
  CHECK(chunk.parts[0].last);
  CHECK(chunk.parts[0].fresh == 0);
}

// --- placement

std::vector<RankView> engines(std::size_t n, std::size_t ranks_each) {
  std::vector<RankView> all;
  for (std::size_t e = 0; e < n; ++e)
    for (std::size_t r = 0; r < ranks_each; ++r)
      all.push_back({.id = {WorkerId(e), static_cast<std::uint32_t>(r)},
                     .engine = static_cast<std::uint32_t>(e),
                     .compute_seconds = 0.1});
  return all;
}

// Four engines, one tier each; short requests arrive at `short_rate` a second.
PrefillBalancer balanced_by_tier(int short_rate) {
  PrefillBalancer balancer({});
  balancer.advance(at(0), 4);
  std::vector<RankView> one = engines(1, 1);
  Rng rng(1);
  Decision d;
  for (const std::int64_t tokens : {1000, 20'000, 100'000, 300'000}) {
    const int n = tokens == 1000 ? 10 * short_rate : 10;
    one[0].compute_seconds = tokens == 1000 ? 1.0 / short_rate : 1;
    for (int i = 0; i < n; ++i)
      balancer.place({.prompt_tokens = tokens}, one, rng, d);
  }
  balancer.advance(at(10), 4);
  for (std::size_t tier = 0; tier < kTiers; ++tier) {
    REQUIRE(balancer.tiers().engines_of(tier) == 1);
    REQUIRE(balancer.tiers().prefers(tier, tier));
  }
  return balancer;
}

TEST_CASE("in its tier a request goes to the rank that is ready first") {
  PrefillBalancer balancer = balanced_by_tier(10);
  auto all = engines(4, 2);
  for (RankView& rank : all)
    rank.outstanding_seconds = 0.21;
  all[2].outstanding_seconds = 0.3;  // engine 1
  all[3].outstanding_seconds = 0.205;
  Rng rng(2);
  Decision d;
  balancer.place({.prompt_tokens = 20'000}, all, rng, d);
  CHECK(d.reason == PlaceReason::kTier);
  CHECK(*d.choice == 3);
}

TEST_CASE("a request crosses when it gains more than it delays others") {
  PrefillBalancer balancer = balanced_by_tier(10);
  auto all = engines(4, 1);
  Rng rng(3);
  Decision d;
  all[1].outstanding_seconds = 5;
  all[0].waiting = 3;
  all[2].waiting = 3;
  all[3].waiting = 3;
  // Own compute 0.1 s delays three waiting ones by 0.1 s each: gains 5 s, crosses.
  balancer.place({.prompt_tokens = 20'000}, all, rng, d);
  CHECK(d.reason == PlaceReason::kCrossedTier);
  CHECK(*d.choice != 1);
  // With 100 waiting it would cost them 10 s: stays.
  all[0].waiting = all[2].waiting = all[3].waiting = 100;
  balancer.place({.prompt_tokens = 20'000}, all, rng, d);
  CHECK(d.reason == PlaceReason::kTier);
  CHECK(*d.choice == 1);
}

TEST_CASE("a long prompt keeps off an idle engine of short ones that are bound to come") {
  PrefillBalancer balancer = balanced_by_tier(100);
  auto all = engines(4, 1);
  for (RankView& rank : all)
    rank.compute_seconds = 10;
  all[1].accepts = all[2].accepts = false;
  all[3].outstanding_seconds = 20;  // its own tier is busy, the short tier is idle
  Rng rng(4);
  Decision d;
  // 10 s on the short tier's only rank meets 1,000 short requests, half of 10 s each.
  balancer.place({.prompt_tokens = 300'000}, all, rng, d);
  CHECK(*d.choice == 3);
  // A short one may use the idle long tier: it delays little.
  for (RankView& rank : all)
    rank.compute_seconds = 0.01;
  all[3].outstanding_seconds = 0;
  all[0].outstanding_seconds = 1;
  balancer.place({.prompt_tokens = 1000}, all, rng, d);
  CHECK(*d.choice == 3);
  CHECK(d.reason == PlaceReason::kCrossedTier);
}

TEST_CASE("tiers never exclude: without a candidate in the tier, the best of the others") {
  PrefillBalancer balancer = balanced_by_tier(10);
  auto all = engines(4, 1);
  all[1].accepts = false;
  all[2].outstanding_seconds = 1;
  all[3].outstanding_seconds = 1;
  Rng rng(5);
  Decision d;
  balancer.place({.prompt_tokens = 20'000}, all, rng, d);
  CHECK(*d.choice == 0);
}

TEST_CASE("hit tokens cost their load, and links are a resource of their own") {
  PrefillBalancer balancer({});
  auto all = engines(1, 3);
  balancer.advance(at(0), 1);
  // A hit of most of the prompt, but the link is busy; no hit elsewhere.
  all[0].compute_seconds = 0.02;
  all[0].load_seconds = 0.05;
  all[0].load_outstanding_seconds = 0.5;
  all[1].compute_seconds = 0.3;
  all[2].compute_seconds = 0.3;
  all[2].outstanding_seconds = 0.1;
  CHECK(ready_seconds(all[0], 0) == doctest::Approx(0.57));
  CHECK(ready_seconds(all[2], 0) == doctest::Approx(0.4));
  Rng rng(6);
  Decision d;
  balancer.place({.prompt_tokens = 1000}, all, rng, d);
  CHECK(*d.choice == 1);
  all[0].load_outstanding_seconds = 0.1;
  balancer.place({.prompt_tokens = 1000}, all, rng, d);
  CHECK(*d.choice == 0);
  // The load overlaps with the compute queue: the later of both counts.
  all[0].outstanding_seconds = 0.14;
  CHECK(ready_seconds(all[0], 0) == doctest::Approx(0.17));
}

TEST_CASE("ranks step together: an idle engine comes before an idle rank of a busy one") {
  PrefillBalancer balancer({});
  balancer.advance(at(0), 2);
  auto all = engines(2, 2);
  all[1].outstanding_seconds = 3;  // its engine steps in full chunks
  CHECK(ready_seconds(all[0], 0.2) == doctest::Approx(0.3));
  CHECK(ready_seconds(all[2], 0) == doctest::Approx(0.1));
  Rng rng(8);
  Decision d;
  balancer.place({.prompt_tokens = 1000}, all, rng, d);
  CHECK(*d.choice >= 2);
}

TEST_CASE("no candidate is an answer") {
  PrefillBalancer balancer({});
  Rng rng(7);
  Decision d;
  balancer.place({.prompt_tokens = 1000}, {}, rng, d);
  CHECK(!d.choice);
  CHECK(d.reason == PlaceReason::kNoRanks);
  balancer.advance(at(0), 0);
  auto all = engines(2, 1);  // engines that were not counted in yet
  balancer.place({.prompt_tokens = 1000}, all, rng, d);
  CHECK(d.choice);
}

}  // namespace
}  // namespace penstock::routing
