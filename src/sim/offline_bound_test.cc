#include "sim/offline_bound.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "base/rng.h"
#include "sim/cluster.h"
#include "sim/efficiency.h"

#include <doctest/doctest.h>

#include "tests/support/effort.h"

namespace penstock::sim {
namespace {

routing::Profile tiny(std::int64_t prefill_ranks, std::int64_t group, std::int64_t decode_ranks) {
  routing::Profile p;
  p.name = "tiny";
  p.basis = routing::ProfileBasis::kPlaceholder;
  p.prefill_pool = {.ranks = prefill_ranks,
                    .group_ranks = group,
                    .host_ranks = group,
                    .kv_tokens = 1'000'000,
                    .requests_max = 100};
  p.decode_pool = {.ranks = decode_ranks,
                   .group_ranks = decode_ranks,
                   .host_ranks = decode_ranks,
                   .kv_tokens = 1'000'000,
                   .requests_max = 1000};
  p.costs.prefill = {0, 1e-3, 0};
  p.costs.step = {0.01, 1e-3, 1e-7};
  p.costs.load.fill({0.0001, 1e10});
  p.costs.transfer_same_zone = {0.0001, 1e10};
  p.costs.transfer_other_zone = {0.0001, 1e10};
  p.kv_bytes_per_token = 1000;
  p.chunk_budget_seconds = 0.2;
  p.chunk_tokens_max = 8192;
  p.context_tokens_max = 100'000;
  return p;
}

BoundRequest request(double arrival, double limit, double work) {
  return {.arrival = arrival,
          .deadline = arrival + limit,
          .finish = arrival + limit,
          .prefill_work = work,
          .decode_work = 0,
          .decode_tokens = 0,
          .last_token_work = 0};
}

// One machine that may interrupt: earliest deadline first is the optimum.
bool earliest_deadline_first(std::vector<BoundRequest> jobs) {
  double now = 0;
  for (;;) {
    BoundRequest* next = nullptr;
    double next_arrival = 1e18;
    for (BoundRequest& job : jobs) {
      if (job.prefill_work <= 1e-12) continue;
      if (job.arrival > now + 1e-12)
        next_arrival = std::min(next_arrival, job.arrival);
      else if (next == nullptr || job.deadline < next->deadline)
        next = &job;
    }
    if (next == nullptr && next_arrival > 1e17) return true;
    if (next == nullptr) {
      now = next_arrival;
      continue;
    }
    const double run = std::min(next->prefill_work, next_arrival - now);
    now += run;
    next->prefill_work -= run;
    if (next->prefill_work <= 1e-12 && now > next->deadline + 1e-9) return false;
  }
}

TEST_CASE("one rank without base costs: the bound is the optimum") {
  Rng rng(3);
  const routing::Profile profile = tiny(1, 1, 1);
  int feasible = 0;
  for (int round = 0; round < 3000; ++round) {
    BoundLoad load;
    double at = 0;
    for (std::uint64_t i = 0, n = 1 + rng.below(9); i < n; ++i) {
      at += 0.5 * rng.uniform();
      load.requests.push_back(request(at, 0.2 + 2 * rng.uniform(), 0.1 + 0.5 * rng.uniform()));
    }
    load.last_arrival = at;
    const bool possible = earliest_deadline_first(load.requests);
    feasible += possible ? 1 : 0;
    CHECK(check_bound(profile, load, {.slo = {.missed_share = 0}}).feasible == possible);
  }
  CHECK(feasible > 300);
  CHECK(feasible < 2700);
}

// Every way to give `jobs` to ranks, in every order, some of them given up. A rank computes them
// one after the other, in steps of at most the budget, each with a base cost.
struct Exhaustive {
  const std::vector<BoundRequest>& jobs;
  std::size_t ranks;
  double base;
  double useful;

  bool possible(std::vector<double>& free, unsigned done, std::size_t may_miss) const {
    if (done + 1 == 1U << jobs.size()) return true;
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      if ((done >> j & 1U) != 0) continue;
      const BoundRequest& job = jobs[j];
      const double took = job.prefill_work + base * std::ceil(job.prefill_work / useful - 1e-9);
      for (std::size_t r = 0; r < ranks; ++r) {
        const double before = free[r];
        free[r] = std::max(before, job.arrival) + took;
        if (free[r] <= job.deadline && possible(free, done | 1U << j, may_miss)) return true;
        free[r] = before;
      }
      if (may_miss > 0 && possible(free, done | 1U << j, may_miss - 1)) return true;
    }
    return false;
  }
};

TEST_CASE("tiny instances: the exhaustive optimum is never above the bound, and often near it") {
  Rng rng(11);
  double sum = 0;
  int counted = 0;
  for (int round = 0; round < 300; ++round) {
    const std::size_t ranks = 1 + rng.below(2);
    routing::Profile profile = tiny(static_cast<std::int64_t>(ranks), 1, 1);
    profile.costs.prefill.base = 0.05 * rng.uniform();
    const std::size_t n = 4 + rng.below(2);
    const std::size_t may_miss = rng.below(2);
    std::vector<BoundRequest> base;
    double at = 0;
    for (std::size_t i = 0; i < n; ++i) {
      at += rng.uniform();
      base.push_back(request(at, 0.5 + 0.4 * rng.uniform(), 0.25 + 0.2 * rng.uniform()));
    }
    const auto at_load = [&](double load) {
      std::vector<BoundRequest> jobs = base;
      for (BoundRequest& job : jobs) {
        const double limit = job.deadline - job.arrival;
        job.arrival /= load;
        job.deadline = job.arrival + limit;
        job.finish = job.deadline;
      }
      return jobs;
    };
    const auto bound = highest_load(
        [&](double load) -> Result<bool> {
          const BoundLoad jobs{.requests = at_load(load)};
          return check_bound(profile, jobs,
                             {.slo = {.missed_share = (static_cast<double>(may_miss) + 0.5) /
                                                      static_cast<double>(n)}})
              .feasible;
        },
        1, 1e-3);
    const auto optimum = highest_load(
        [&](double load) -> Result<bool> {
          const std::vector<BoundRequest> jobs = at_load(load);
          std::vector<double> free(ranks);
          const double step_base = profile.costs.prefill.base;
          return Exhaustive{jobs, ranks, step_base, profile.chunk_budget_seconds - step_base}
              .possible(free, 0, may_miss);
        },
        1, 1e-3);
    REQUIRE(bound);
    REQUIRE(optimum);
    // Bisection of a feasibility that need not be monotone can stop early, on either side.
    const std::vector<BoundRequest> best = at_load(*optimum);
    if (*optimum > 0)
      CHECK(check_bound(profile, {.requests = best},
                        {.slo = {.missed_share = (static_cast<double>(may_miss) + 0.5) /
                                                 static_cast<double>(n)}})
                .feasible);
    if (*bound > 0 && *bound < 1e4) {
      sum += std::min(1.0, *optimum / *bound);
      ++counted;
    }
  }
  REQUIRE(counted > 50);
  CHECK(sum / counted > 0.5);
}

TEST_CASE("given up: the costliest first, added up over disjoint windows") {
  const routing::Profile profile = tiny(1, 1, 1);
  BoundLoad load;
  for (const double start : {0.0, 100.0}) {  // twice 2.4 s of work due within 2 s
    load.requests.push_back(request(start, 2, 1.0));
    for (int i = 0; i < 7; ++i)
      load.requests.push_back(request(start, 2, 0.2));
  }
  const auto missed = [&](double share) {
    return check_bound(profile, load, {.slo = {.missed_share = share}});
  };
  CHECK(missed(0).prefill_missed == 2);
  CHECK(!missed(0.07).feasible);  // one of sixteen
  CHECK(missed(0.13).feasible);   // two
  CHECK(missed(0.07).broken == BoundCondition::kPrefill);
}

TEST_CASE("decode: what a batch within tau can do is allowed, more is not") {
  const routing::Profile profile = tiny(1, 1, 1);  // 10 ms + 1 ms a request
  const auto load_of = [&](double requests) {
    BoundLoad load;
    for (int i = 0; i < static_cast<int>(requests); ++i)
      load.requests.push_back({.arrival = 0,
                               .deadline = 1,
                               .finish = 1 + 0.05 * 999,
                               .prefill_work = 0,
                               .decode_work = 999e-3,
                               .decode_tokens = 999,
                               .last_token_work = 1e-3});
    load.last_arrival = 100;
    load.tokens_all = 999 * requests;
    return load;
  };
  const BoundOptions options{.slo = {.tau = 0.05, .missed_share = 0}};
  CHECK(check_bound(profile, load_of(40), options).feasible);  // steps of exactly 50 ms
  CHECK(!check_bound(profile, load_of(45), options).feasible);
  CHECK(check_bound(profile, load_of(45), options).broken == BoundCondition::kDecode);
}

evaluate::Trace random_trace(Rng& rng, std::uint64_t requests) {
  evaluate::Trace trace;
  trace.block_tokens = 64;
  std::int64_t at = 0;
  for (std::uint64_t i = 0; i < requests; ++i) {
    at += static_cast<std::int64_t>(rng.below(2) * rng.below(400'000));
    const auto blocks = static_cast<std::uint32_t>(1 + rng.below(rng.below(4) == 0 ? 20 : 5));
    evaluate::TraceRequest request{
        .arrival_us = at,
        .prompt_tokens = static_cast<std::int64_t>(64 * blocks - rng.below(64)),
        .output_tokens = static_cast<std::int64_t>(1 + rng.below(12)),
        .first_block = static_cast<std::uint32_t>(trace.blocks.size()),
        .block_count = blocks};
    const std::uint64_t conversation = rng.below(4);
    for (std::uint64_t b = 0; b < blocks; ++b)
      trace.blocks.push_back(b == 0 ? 0 : conversation * 1000 + b);
    trace.requests.push_back(request);
  }
  trace.duration_us = at + 1;
  return trace;
}

TEST_CASE("10,000 random instances: no policy serves what the bound forbids") {
  Rng rng(29);
  std::vector<std::string> names{"default"};
  for (const auto name : routing::policy_names())
    names.emplace_back(name);
  int met = 0;
  int forbidden = 0;
  int met_on_all = 0;  // with prompts on decode ranks
  int forbidden_on_all = 0;
  for (int round = 0; round < rounds(10'000); ++round) {
    const auto group = static_cast<std::int64_t>(1 + rng.below(2));
    routing::Profile profile = tiny(group * static_cast<std::int64_t>(1 + rng.below(2)), group,
                                    static_cast<std::int64_t>(1 + rng.below(2)));
    profile.costs.prefill.base = 0.02 * rng.uniform();
    profile.costs.prefill_moe = {1 + 0.1 * rng.uniform(), 0.3 * rng.uniform()};
    profile.costs.decode_moe = {1 + 0.1 * rng.uniform(), 0.3 * rng.uniform()};
    const evaluate::Trace trace = random_trace(rng, 4 + rng.below(16));
    const double speed = 0.3 + 5 * rng.uniform();
    std::vector<evaluate::Arrival> arrivals;
    for (std::uint32_t i = 0; i < trace.requests.size(); ++i)
      arrivals.push_back(
          {static_cast<std::int64_t>(static_cast<double>(trace.requests[i].arrival_us) / speed) +
               1 + i,
           i, 0});
    ClusterOptions options;
    options.slo = {.ttft_limit = 0.3 + rng.uniform(),
                   .ttft_ratio = 1 + 2 * rng.uniform(),
                   .tau = 0.015 + 0.02 * rng.uniform(),
                   .missed_share = 0.2 * rng.uniform(),
                   .gap_share = 0.1 * rng.uniform()};
    options.warmup = Duration::zero();
    options.gateways = 1 + rng.below(2);
    options.seed = static_cast<std::uint64_t>(round);
    const BoundLoad load = bound_load(profile, trace, arrivals, options.warmup, options.slo);
    const bool feasible = check_bound(profile, load, {.slo = options.slo}).feasible;
    // Decode ranks have much time for prompts: the same, up to forty times as fast, and a stricter
    // level.
    Slo strict = options.slo;
    strict.ttft_limit *= 0.05;
    std::vector<evaluate::Arrival> faster = arrivals;
    const auto times = static_cast<std::int64_t>(1 + rng.below(40));
    for (evaluate::Arrival& arrival : faster)
      arrival.at_us = arrival.at_us / times + 1;
    const bool feasible_on_all =
        check_bound(profile, bound_load(profile, trace, faster, options.warmup, strict),
                    {.slo = strict, .prefill_on_decode_ranks = true})
            .feasible;
    forbidden += feasible ? 0 : 1;
    forbidden_on_all += feasible_on_all ? 0 : 1;
    {
      ClusterOptions all = options;
      all.prefill_on_decode = true;
      all.slo = strict;
      all.decode_step_seconds = options.slo.tau * (0.5 + rng.uniform());
      all.prefill_policy = all.decode_policy =
          names[static_cast<std::size_t>(round) % names.size()];
      const auto report = simulate(profile, trace, faster, all);
      REQUIRE(report);
      met_on_all += report->meets_slo() ? 1 : 0;
      if (report->meets_slo() && !feasible_on_all) {
        CAPTURE(round);
        CHECK_MESSAGE(feasible_on_all, "prompts on decode ranks: the bound is wrong");
      }
    }
    for (std::size_t kind = 0; kind <= names.size(); ++kind) {
      options.clairvoyant = kind == names.size();
      options.front.on = rng.below(2) == 0;
      const std::string& name = names[kind % names.size()];
      options.prefill_policy = name;
      options.decode_policy = name;
      const auto report = simulate(profile, trace, arrivals, options);
      REQUIRE(report);
      met += report->meets_slo() ? 1 : 0;
      if (report->meets_slo() && !feasible) {
        CAPTURE(round);
        CAPTURE(name);
        CAPTURE(kind);
        CHECK_MESSAGE(feasible, "a policy above the bound: the bound is wrong");
      }
    }
  }
  MESSAGE("met ", met, " of 90000, forbidden instances ", forbidden);
  MESSAGE("prompts on decode ranks: met ", met_on_all, " of 10000, forbidden ", forbidden_on_all);
  CHECK(met_on_all > rounds(100));
  CHECK(forbidden_on_all > 0);
  CHECK(met > 5000);
  CHECK(forbidden > rounds(300));
}

}  // namespace
}  // namespace penstock::sim
