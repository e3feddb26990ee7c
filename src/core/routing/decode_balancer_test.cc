#include "core/routing/decode_balancer.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "core/routing/cost_model.h"
#include "core/routing/load_path.h"
#include "core/routing/policies.h"

#include <doctest/doctest.h>

namespace penstock::routing {
namespace {

std::vector<RankView> ranks(std::size_t n, std::int64_t capacity = 0) {
  std::vector<RankView> all(n);
  for (std::size_t i = 0; i < n; ++i) {
    all[i].id = {WorkerId(0), static_cast<std::uint32_t>(i)};
    all[i].kv_capacity = capacity;
  }
  return all;
}

TEST_CASE("short requests go where requests are few, long ones where KV is little") {
  auto all = ranks(2);
  all[0].running = 10;  // few requests, much KV
  all[0].kv_tokens = 2'000'000;
  all[1].running = 40;  // many requests, little KV
  all[1].kv_tokens = 200'000;
  DecodeBalancer balancer({});
  Rng rng(1);
  Decision d;
  balancer.place({.prompt_tokens = 500, .output_tokens = 200}, all, rng, d);
  CHECK(*d.choice == 0);
  CHECK(d.reason == PlaceReason::kLevel);
  balancer.place({.prompt_tokens = 200'000, .output_tokens = 1000}, all, rng, d);
  CHECK(*d.choice == 1);
}

TEST_CASE("expected growth counts") {
  auto all = ranks(2);
  all[0].running = 10;
  all[0].kv_tokens = 400'000;
  all[1].running = 12;
  all[1].kv_tokens = 100'000;
  DecodeBalancer balancer({});
  Rng rng(1);
  Decision d;
  balancer.place({.prompt_tokens = 1000, .output_tokens = 100}, all, rng, d);
  CHECK(*d.choice == 0);
  balancer.place({.prompt_tokens = 1000, .output_tokens = 100'000}, all, rng, d);
  CHECK(*d.choice == 1);
}

TEST_CASE("headroom is kept while any rank has it") {
  auto all = ranks(2, 100'000);
  all[0].kv_tokens = 90'000;
  all[1].kv_tokens = 80'000;
  all[1].running = 1000;
  DecodeBalancer balancer({.headroom = 0.05});
  Rng rng(1);
  Decision d;
  balancer.place({.prompt_tokens = 8000, .output_tokens = 0}, all, rng, d);
  CHECK(*d.choice == 1);
  CHECK(d.candidates == 1);
  all[1].kv_tokens = 90'000;
  balancer.place({.prompt_tokens = 8000, .output_tokens = 0}, all, rng, d);
  CHECK(*d.choice == 0);  // nobody has headroom: fits all the same
  balancer.place({.prompt_tokens = 20'000, .output_tokens = 0}, all, rng, d);
  CHECK(d.reason == PlaceReason::kNoRoom);
}

struct Spread {
  double requests = 0;  // mean over time of max/mean over ranks
  double kv = 0;
  double step = 0;  // mean group step, seconds
};

// A decode pool in steps: mixed requests come, grow and go.
Spread run(PlacementPolicy& policy, std::uint64_t seed) {
  constexpr std::size_t kRanks = 16;
  const StepCoefficients cost{0.012, 3.6e-5, 1.9e-9};
  struct Running {
    std::size_t rank;
    std::int64_t context;
    std::int64_t left;
    std::int64_t reserved;
  };
  std::vector<Running> running;
  Rng rng(seed);
  Rng policy_rng(seed + 1);
  Decision d;
  Spread spread;
  int counted = 0;
  std::vector<StepLoad> loads(kRanks);
  for (int step = 0; step < 3000; ++step) {
    const std::uint64_t arrivals = 1 + rng.below(3);
    for (std::uint64_t a = 0; a < arrivals; ++a) {
      auto all = ranks(kRanks);
      for (const Running& r : running) {
        ++all[r.rank].running;
        all[r.rank].kv_tokens += r.context + r.left;
      }
      const bool is_long = rng.below(20) == 0;
      const auto context =
          static_cast<std::int64_t>(is_long ? 100'000 + rng.below(300'000) : 200 + rng.below(8000));
      const auto output = static_cast<std::int64_t>(50 + rng.below(400));
      policy.place({.prompt_tokens = context, .output_tokens = output}, all, policy_rng, d);
      running.push_back({*d.choice, context, output, 0});
    }
    std::ranges::fill(loads, StepLoad{});
    for (Running& r : running) {
      ++loads[r.rank].batch;
      loads[r.rank].kv_tokens += r.context;
      ++r.context;
      --r.left;
    }
    std::erase_if(running, [](const Running& r) { return r.left == 0; });
    if (step < 500) continue;
    double requests = 0;
    double kv = 0;
    double most_requests = 0;
    double most_kv = 0;
    for (const StepLoad& load : loads) {
      requests += static_cast<double>(load.batch) / kRanks;
      kv += static_cast<double>(load.kv_tokens) / kRanks;
      most_requests = std::max(most_requests, static_cast<double>(load.batch));
      most_kv = std::max(most_kv, static_cast<double>(load.kv_tokens));
    }
    spread.requests += most_requests / requests;
    spread.kv += most_kv / kv;
    spread.step += group_step_seconds(cost, loads, 1);
    ++counted;
  }
  spread.requests /= counted;
  spread.kv /= counted;
  spread.step /= counted;
  return spread;
}

TEST_CASE("both dimensions stay level, better than every alternative on the group's step") {
  DecodeBalancer balancer({});
  const Spread ours = run(balancer, 3);
  CHECK(ours.requests <= 1.35);
  CHECK(ours.kv <= 1.45);  // one or two long requests a rank: evener is not possible
  for (const std::string_view name : policy_names()) {
    if (name == "session-affinity") continue;  // no sessions here: least requests
    CAPTURE(name);
    const Spread other = run(*make_policy(name, {}).value(), 3);
    CHECK(ours.kv < other.kv);
    CHECK(ours.step < other.step);
  }
}

// --- reservations

TEST_CASE("reservations are counted in, released once, and go with their rank") {
  ReservedKv reserved;
  const RankId a{WorkerId(1), 0};
  const RankId b{WorkerId(1), 1};
  CHECK(reserved.reserve(RequestId(1), a, 100));
  CHECK(!reserved.reserve(RequestId(1), b, 50));
  CHECK(reserved.reserve(RequestId(2), a, 30));
  CHECK(reserved.reserve(RequestId(3), b, 7));
  RankView view{.id = a, .running = 2, .waiting = 1, .kv_tokens = 1000};
  reserved.count_in(view);
  CHECK(view.kv_tokens == 1130);
  CHECK(view.waiting == 3);
  CHECK(reserved.release(RequestId(1)) == 100);
  CHECK(reserved.release(RequestId(1)) == 0);
  CHECK(reserved.tokens(a) == 30);
  CHECK(reserved.drop_rank(a) == std::vector<RequestId>{RequestId(2)});
  CHECK(reserved.tokens(a) == 0);
  CHECK(reserved.requests(b) == 1);
  CHECK(reserved.release(RequestId(3)) == 7);
  CHECK(reserved.size() == 0);
  CHECK(reserved.requests(b) == 0);
}

// --- load paths

TEST_CASE("storage reads go through a decode host with spare bandwidth when that is faster") {
  CostSeeds seeds;
  seeds.load[std::to_underlying(KvTier::kCluster)] = {0.001, 5e9};
  seeds.load[std::to_underlying(KvTier::kDisk)] = {0.001, 5e9};
  seeds.transfer_same_zone = {0.0003, 20e9};
  seeds.transfer_other_zone = {0.005, 1e9};
  const CostModels costs(seeds);
  const Bytes size(500'000'000);  // 0.101 s to read
  const LinkView busy{.zone = 1, .queue_seconds = 0.4};
  const std::vector<LinkView> hosts{{.zone = 2, .queue_seconds = 0},  // far
                                    {.zone = 1, .queue_seconds = 0.2},
                                    {.zone = 1, .queue_seconds = 0.05},
                                    {.zone = 1, .queue_seconds = 0, .usable = false}};
  LoadPath path = choose_load_path(size, KvTier::kCluster, busy, hosts, costs, {});
  REQUIRE(path.through);
  CHECK(*path.through == 2);
  CHECK(path.arrives_seconds == doctest::Approx(0.05 + 0.101 + 0.0003).epsilon(0.001));
  CHECK(path.link_seconds == doctest::Approx(0.101).epsilon(0.001));
  // An idle own link needs no help, a host's own disk can't be read elsewhere, busy hosts don't.
  CHECK(!choose_load_path(size, KvTier::kCluster, {.zone = 1}, hosts, costs, {}).through);
  CHECK(!choose_load_path(size, KvTier::kDisk, busy, hosts, costs, {}).through);
  CHECK(!choose_load_path(size, KvTier::kCluster, busy, {}, costs, {}).through);
  path = choose_load_path(size, KvTier::kCluster, {.zone = 1, .queue_seconds = 3},
                          std::vector<LinkView>{{.zone = 1, .queue_seconds = 0.6}}, costs, {});
  CHECK(!path.through);
  CHECK(choose_load_path(Bytes(0), KvTier::kCluster, busy, hosts, costs, {}).link_seconds == 0);
}

}  // namespace
}  // namespace penstock::routing
