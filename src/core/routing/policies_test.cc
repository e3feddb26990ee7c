#include "core/routing/policies.h"

#include <algorithm>
#include <map>
#include <set>

#include <doctest/doctest.h>

namespace penstock::routing {
namespace {

std::vector<RankView> ranks(std::size_t n) {
  std::vector<RankView> all(n);
  for (std::size_t i = 0; i < n; ++i)
    all[i] = {.id = {WorkerId(i / 8), static_cast<std::uint32_t>(i % 8)},
              .engine = static_cast<std::uint32_t>(i / 8)};
  return all;
}

std::unique_ptr<PlacementPolicy> policy(std::string_view name, const PolicyOptions& options = {}) {
  auto made = make_policy(name, options);
  REQUIRE(made);
  REQUIRE((*made)->name() == name);
  return std::move(*made);
}

const PlaceRequest kRequest{.prompt_tokens = 1000, .output_tokens = 200, .session = 7};

TEST_CASE("an unknown policy is an error that lists what there is") {
  const auto made = make_policy("magic", {});
  REQUIRE(!made);
  CHECK(made.error().message.find("linear-cost") != std::string::npos);
}

TEST_CASE("every policy, random views: the choice can take it, scores say who could") {
  Rng rng(1);
  for (const std::string_view name : policy_names()) {
    CAPTURE(name);
    const auto p = policy(name, {.temperature = rng.uniform()});
    Decision d;
    for (int round = 0; round < 2000; ++round) {
      auto all = ranks(rng.below(12));
      for (RankView& rank : all) {
        rank.accepts = rng.below(4) != 0;
        rank.running = static_cast<std::int64_t>(rng.below(100));
        rank.waiting = static_cast<std::int64_t>(rng.below(100));
        rank.kv_capacity = rng.below(3) == 0 ? 0 : 3000;
        rank.kv_tokens = static_cast<std::int64_t>(rng.below(3000));
        rank.hit_tokens = static_cast<std::int64_t>(rng.below(1001));
        rank.compute_seconds = rng.uniform();
        rank.outstanding_seconds = rng.below(2) == 0 ? 0 : 10 * rng.uniform();
      }
      p->place(kRequest, all, rng, d);
      REQUIRE(d.scores.size() == all.size());
      std::uint32_t candidates = 0;
      for (std::size_t i = 0; i < all.size(); ++i) {
        REQUIRE((d.scores[i] != kNotCandidate) == can_take(all[i], kRequest));
        candidates += can_take(all[i], kRequest) ? 1 : 0;
      }
      REQUIRE(d.candidates == candidates);
      REQUIRE(d.choice.has_value() == (candidates > 0));
      if (d.choice) REQUIRE(can_take(all[*d.choice], kRequest));
      REQUIRE(!explain(d, all, name).empty());
    }
  }
}

TEST_CASE("no candidate is an answer with a reason") {
  Rng rng(2);
  Decision d;
  for (const std::string_view name : policy_names()) {
    const auto p = policy(name);
    p->place(kRequest, {}, rng, d);
    CHECK(d.reason == PlaceReason::kNoRanks);
    auto all = ranks(3);
    for (RankView& rank : all)
      rank.accepts = false;
    p->place(kRequest, all, rng, d);
    CHECK(d.reason == PlaceReason::kNoneAccepts);
    all[1].accepts = true;
    all[1].kv_capacity = 5000;
    all[1].kv_tokens = 4000;
    p->place(kRequest, all, rng, d);
    CHECK(d.reason == PlaceReason::kNoRoom);
    all[1].kv_capacity = 1199;
    p->place(kRequest, all, rng, d);
    CHECK(d.reason == PlaceReason::kTooLarge);
    CHECK(!d.choice);
    all[1].kv_capacity = 5200;
    p->place(kRequest, all, rng, d);
    CHECK(d.reason == PlaceReason::kOnlyCandidate);
    CHECK(*d.choice == 1);
  }
}

TEST_CASE("round robin takes turns and skips who can't") {
  Rng rng(3);
  Decision d;
  auto all = ranks(4);
  all[2].accepts = false;
  const auto p = policy("round-robin");
  std::vector<std::uint32_t> picks;
  for (int i = 0; i < 7; ++i) {
    p->place(kRequest, all, rng, d);
    picks.push_back(*d.choice);
  }
  CHECK(picks == std::vector<std::uint32_t>{0, 1, 3, 0, 1, 3, 0});
  all.resize(2);  // fewer ranks than before
  p->place(kRequest, all, rng, d);
  CHECK(*d.choice == 1);
}

TEST_CASE("random is even, least requests is even among equals") {
  Rng rng(4);
  Decision d;
  auto all = ranks(4);
  all[3].running = 1;
  std::map<std::string_view, std::vector<int>> counts;
  for (const std::string_view name : {"random", "least-requests"}) {
    const auto p = policy(name);
    counts[name].assign(4, 0);
    for (int i = 0; i < 4000; ++i) {
      p->place(kRequest, all, rng, d);
      ++counts[name][*d.choice];
    }
  }
  for (const int n : counts["random"])
    CHECK(std::abs(n - 1000) < 150);
  CHECK(counts["least-requests"][3] == 0);
  for (int i = 0; i < 3; ++i)
    CHECK(std::abs(counts["least-requests"][static_cast<std::size_t>(i)] - 1333) < 150);
}

TEST_CASE("equal ranks: gateways begin to look at different ones") {
  Rng rng(3);
  Decision d;
  const auto all = ranks(16);
  for (const std::string_view name : {"linear-cost", "prefix-affinity"})
    for (const std::uint32_t from : {0u, 5u, 15u, 16u, 99u}) {
      CAPTURE(name);
      PlaceRequest request = kRequest;
      request.ties_from = from;
      auto views = all;
      policy(name)->place(request, views, rng, d);
      const std::uint32_t first = from < 16 ? from : 0;
      CHECK(d.choice == first);
      views[first].accepts = false;
      policy(name)->place(request, views, rng, d);
      CHECK(d.choice == (first + 1) % 16);
    }
}

TEST_CASE("power of two never takes the worst, and balances") {
  Rng rng(5);
  Decision d;
  auto all = ranks(8);
  const auto p = policy("power-of-two");
  for (int i = 0; i < 800; ++i) {
    p->place(kRequest, all, rng, d);
    const auto worst = std::ranges::max(all, {}, &RankView::running).running;
    const auto best = std::ranges::min(all, {}, &RankView::running).running;
    if (std::ranges::count(all, worst, &RankView::running) == 1 && worst > best)
      REQUIRE(all[*d.choice].running < worst);
    ++all[*d.choice].running;
  }
  const auto [least, most] = std::ranges::minmax(all, {}, &RankView::running);
  CHECK(most.running - least.running <= 6);
}

TEST_CASE("sessions keep their home when other ranks come and go, and leave it under imbalance") {
  Rng rng(6);
  Decision d;
  const auto p = policy("session-affinity");
  auto all = ranks(16);
  std::map<std::uint64_t, RankId> homes;
  std::vector<int> sessions_at(16);
  for (std::uint64_t session = 1; session <= 1600; ++session) {
    PlaceRequest request = kRequest;
    request.session = session;
    p->place(request, all, rng, d);
    CHECK(d.reason == PlaceReason::kSession);
    homes[session] = all[*d.choice].id;
    ++sessions_at[*d.choice];
  }
  for (const int n : sessions_at)
    CHECK(std::abs(n - 100) < 45);
  auto fewer = all;
  fewer.erase(fewer.begin() + 5);
  for (const auto& [session, home] : homes) {
    PlaceRequest request = kRequest;
    request.session = session;
    p->place(request, fewer, rng, d);
    if (home != all[5].id) REQUIRE(fewer[*d.choice].id == home);
  }
  for (RankView& rank : all)
    rank.running = 100;
  all[9].running = 10;
  p->place(kRequest, all, rng, d);
  CHECK(d.reason == PlaceReason::kImbalance);
  CHECK(*d.choice == 9);
  PlaceRequest none = kRequest;
  none.session = 0;
  p->place(none, all, rng, d);
  CHECK(d.reason == PlaceReason::kFewestRequests);
}

TEST_CASE("prefixes attract when long enough and ranks are level") {
  Rng rng(7);
  Decision d;
  const auto p = policy("prefix-affinity");
  auto all = ranks(4);
  all[0].running = 5;
  all[1].running = 7;
  all[1].hit_tokens = 800;
  all[2].running = 6;
  all[2].hit_tokens = 301;
  all[3].running = 9;
  p->place(kRequest, all, rng, d);
  CHECK(d.reason == PlaceReason::kPrefix);
  CHECK(*d.choice == 1);
  all[2].hit_tokens = 800;  // equal hits: fewer requests
  p->place(kRequest, all, rng, d);
  CHECK(*d.choice == 2);
  all[1].hit_tokens = all[2].hit_tokens = 300;  // not above the threshold
  p->place(kRequest, all, rng, d);
  CHECK(d.reason == PlaceReason::kFewestRequests);
  CHECK(*d.choice == 0);
  all[1].hit_tokens = 1000;
  all[1].running = 70;
  p->place(kRequest, all, rng, d);
  CHECK(d.reason == PlaceReason::kImbalance);
  CHECK(*d.choice == 0);
}

TEST_CASE("linear cost weighs hits against load; temperature spreads") {
  Rng rng(8);
  Decision d;
  auto all = ranks(3);
  for (RankView& rank : all) {
    rank.compute_seconds = 1;
    rank.kv_capacity = 10'000;
  }
  all[0].outstanding_seconds = 2;
  all[0].compute_seconds = 0.1;  // a long hit
  all[1].outstanding_seconds = 0.5;
  all[2].outstanding_seconds = 0.5;
  all[2].kv_tokens = 5000;
  const auto p = policy("linear-cost");
  p->place(kRequest, all, rng, d);
  CHECK(*d.choice == 1);
  CHECK(d.reason == PlaceReason::kLowestCost);
  all[0].outstanding_seconds = 0.5;
  p->place(kRequest, all, rng, d);
  CHECK(*d.choice == 0);
  const auto warm = policy("linear-cost", {.temperature = 1});
  std::set<std::uint32_t> seen;
  std::vector<int> counts(3);
  for (int i = 0; i < 2000; ++i) {
    warm->place(kRequest, all, rng, d);
    ++counts[*d.choice];
  }
  CHECK(counts[0] > counts[1]);
  CHECK(counts[1] > counts[2]);
  CHECK(counts[2] > 0);
}

TEST_CASE("the explanation names rank, reason and scores") {
  Rng rng(9);
  Decision d;
  auto all = ranks(2);
  all[0].running = 4;
  all[1].running = 2;
  policy("least-requests")->place(kRequest, all, rng, d);
  CHECK(explain(d, all, "least-requests") ==
        "least-requests: worker 0 rank 1 of 2 candidates: fewest requests (score 2; best other 4)");
  policy("random")->place(kRequest, {}, rng, d);
  CHECK(explain(d, {}, "random") == "random: none of 0 ranks: no ranks are known");
}

}  // namespace
}  // namespace penstock::routing
