#include "sim/plan.h"

#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include "evaluate/generate.h"
#include "tests/support/cases.h"

#include <doctest/doctest.h>

namespace penstock::sim {
namespace {

using std::chrono::seconds;

routing::Profile profile_of(const std::string& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  auto profile = routing::parse_profile(text);
  REQUIRE_MESSAGE(profile, path);
  return std::move(*profile);
}

// Two hosts of two ranks are one prefill engine, and up to four hosts one decode engine. Tokens
// cost ten times as much, so that small loads need some ranks.
routing::Profile estimates() {
  routing::Profile p = profile_of("profiles/v41-flash-64p-64d.json");
  p.prefill_pool = {
      .ranks = 8, .group_ranks = 4, .host_ranks = 2, .kv_tokens = 10'000'000, .requests_max = 100};
  p.decode_pool = {
      .ranks = 8, .group_ranks = 8, .host_ranks = 2, .kv_tokens = 10'000'000, .requests_max = 200};
  p.costs.prefill.per_token *= 10;
  p.costs.step.per_request *= 10;
  return p;
}

evaluate::Trace chat() {
  auto trace = evaluate::generate("chat", {.requests_per_second = 8, .seconds = 60, .seed = 3});
  REQUIRE(trace);
  return std::move(*trace);
}

PlanOptions short_plan(double copies) {
  return {.load = {.duration = seconds(40), .warmup = seconds(10), .seed = 1},
          .copies = copies,
          .sensitivities = false};
}

TEST_CASE("pools grow by hosts, in equal groups no wider than the profile's") {
  const routing::PoolProfile eights{.group_ranks = 8, .host_ranks = 8};
  CHECK(pool_size(eights, 1).ranks == 8);
  CHECK(pool_size(eights, 17).ranks == 24);
  CHECK(pool_size(eights, 17).group_ranks == 8);
  const routing::PoolProfile wide{.group_ranks = 64, .host_ranks = 8};
  CHECK(pool_size(wide, 20).ranks == 24);
  CHECK(pool_size(wide, 20).group_ranks == 24);
  CHECK(pool_size(wide, 65).ranks == 80);  // 72 would be two groups of four and a half hosts
  CHECK(pool_size(wide, 65).group_ranks == 40);
  const routing::PoolProfile singles{.group_ranks = 1, .host_ranks = 1};
  CHECK(pool_size(singles, 5).ranks == 5);
  CHECK(pool_size(singles, 5).group_ranks == 1);
}

TEST_CASE("the closed form, by hand") {
  routing::Profile p = estimates();
  p.costs.prefill = {0.05, 1e-3, 0};
  p.costs.prefill_moe = {1, 0};
  p.costs.step = {0.01, 1e-3, 0};
  p.costs.decode_moe = {1, 0};
  p.chunk_budget_seconds = 0.25;
  p.decode_pool.requests_max = 10;
  evaluate::Trace trace;
  for (int i = 0; i < 101; ++i)
    trace.requests.push_back(
        {.arrival_us = i * 100'000, .prompt_tokens = 200, .output_tokens = 41});
  trace.duration_us = 10'100'000;
  ClusterOptions options{.warmup = seconds(0)};
  const Demand d = demand_of(p, trace, evaluate::scale(trace, {}), options);
  CHECK(d.requests == doctest::Approx(10.1));
  CHECK(d.prefill_work == doctest::Approx(10.1 * 0.2));
  CHECK(d.requests_running == doctest::Approx(10.1 * 40 * 0.05));  // Little's law
  CHECK(d.hit_rate() == 0);
  const ClosedForm c = closed_form(p, d, options.slo);
  CHECK(c.prefill == doctest::Approx(10.1 * 0.2 * 0.25 / 0.2));
  // A rank makes 40 tokens in a step: 50 ms less 10, 1 ms each. 404 tokens a second are wanted.
  CHECK(c.decode_for_work == doctest::Approx(404 * 0.05 / 40));
  CHECK(c.decode_for_requests == doctest::Approx(20.2 / 10));
  CHECK(c.decode == c.decode_for_requests);
}

TEST_CASE("hits: what is stored within its time to live is not computed again") {
  const routing::Profile p = estimates();
  evaluate::Trace trace;
  for (std::uint32_t i = 0; i < 40; ++i) {
    trace.requests.push_back({.arrival_us = i * std::int64_t{1'000'000},
                              .prompt_tokens = 1024,
                              .output_tokens = 2,
                              .first_block = 2 * i,
                              .block_count = 2});
    trace.blocks.push_back(1);
    trace.blocks.push_back(100 + i);
  }
  trace.duration_us = 40'000'000;
  const auto arrivals = evaluate::scale(trace, {});
  const double block = 512.0 * static_cast<double>(p.kv_bytes_per_token);
  const Demand kept =
      demand_of(p, trace, arrivals, {.cache_ttl = seconds(5), .warmup = seconds(10)});
  CHECK(kept.hit_rate() == doctest::Approx(0.5));
  CHECK(kept.kv_stored_bytes == doctest::Approx(7 * block));  // the first, and six others
  CHECK(kept.kv_new_bytes == doctest::Approx(30 * block / 29));
  const Demand none = demand_of(p, trace, arrivals, {.cache_ttl = {}, .warmup = seconds(10)});
  CHECK(none.hit_rate() == 0);
  const Demand days =
      demand_of(p, trace, arrivals, {.cache_ttl = seconds(86'400), .warmup = seconds(10)});
  CHECK(days.kv_stored_bytes == doctest::Approx(86'400 * days.kv_new_bytes));
}

TEST_CASE("the closed form counts what each tier holds, and what reading it takes") {
  routing::Profile p = estimates();
  p.prefill_pool.host_ranks = 2;
  evaluate::Trace trace;  // ten prompts of two blocks, over and over
  for (std::uint32_t i = 0; i < 60; ++i) {
    trace.requests.push_back({.arrival_us = i * std::int64_t{1'000'000},
                              .prompt_tokens = 1024,
                              .output_tokens = 2,
                              .first_block = 2 * i,
                              .block_count = 2});
    trace.blocks.push_back(10 + i % 10);
    trace.blocks.push_back(100 + i % 10);
  }
  trace.duration_us = 60'000'000;
  const auto arrivals = evaluate::scale(trace, {});
  ClusterOptions options{
      .cache_scope = CacheScope::kEngine, .cache_blocks = 6, .warmup = seconds(20)};
  const auto demand = [&] { return demand_of(p, trace, arrivals, options); };
  const Demand memory = demand();
  CHECK(memory.hit_rate() == 0);  // the last three prompts
  CHECK(memory.load_seconds == 0);
  options.disk = {.blocks = 1000};
  const Demand disk = demand();
  CHECK(disk.hit_rate() > 0.99);
  CHECK(disk.kv_read_bytes == 0);  // there is no store
  CHECK(closed_form(p, disk, options.slo).prefill < closed_form(p, memory, options.slo).prefill);
  options.disk = {.blocks = 12};  // too little room, and too short a time
  CHECK(demand().hit_rate() == 0);
  options.disk = {.blocks = 1000, .ttl = seconds(8)};
  CHECK(demand().hit_rate() == 0);
  options.cache_scope = CacheScope::kCluster;
  options.cache_blocks = 0;
  options.disk = {};
  const Demand store = demand();
  CHECK(store.hit_rate() == doctest::Approx(disk.hit_rate()));
  CHECK(store.kv_read_bytes ==
        doctest::Approx(1023 * static_cast<double>(p.kv_bytes_per_token) * 40 / 39));
  // A disk that takes two seconds for a hit keeps two of a host's links busy: four ranks.
  options.cache_scope = CacheScope::kEngine;
  options.cache_blocks = 6;
  options.disk = {.blocks = 1000};
  p.costs.load.fill({2, 1e12});
  const ClosedForm slow = closed_form(p, demand(), options.slo);
  CHECK(slow.prefill_for_loads == doctest::Approx(2 * 2 * 40.0 / 39).epsilon(0.001));
  CHECK(slow.prefill == slow.prefill_for_loads);
  CHECK(slow.prefill_for_work < 1);
}

TEST_CASE("the plan meets the level, one size less does not, and one seed gives one plan") {
  const routing::Profile profile = estimates();
  const evaluate::Trace trace = chat();
  PlanOptions options = short_plan(4);
  options.sensitivities = true;
  options.gpu_hour_price = 2;
  const auto plan = plan_deployment(profile, trace, options);
  REQUIRE(plan);
  CHECK(plan->report.meets_slo());
  const auto arrivals = arrivals_of(trace, options.load, options.copies);
  const auto meets = [&](std::int64_t prefill, std::int64_t decode) {
    routing::Profile smaller = profile;
    const PoolSize p = pool_size(profile.prefill_pool, prefill);
    const PoolSize d = pool_size(profile.decode_pool, decode);
    smaller.prefill_pool.ranks = p.ranks;
    smaller.prefill_pool.group_ranks = p.group_ranks;
    smaller.decode_pool.ranks = d.ranks;
    smaller.decode_pool.group_ranks = d.group_ranks;
    return simulate(smaller, trace, arrivals, {.warmup = options.load.warmup})->meets_slo();
  };
  const PlanCase& base = plan->base;
  REQUIRE(base.prefill.ranks > 2);
  const auto plenty = 2 * static_cast<std::int64_t>(std::ceil(base.closed.decode)) + 2;
  // Sizes that don't divide into groups are left out: of 8 ranks the next smaller is 4.
  std::int64_t less = base.prefill.ranks - 1;
  while (pool_size(profile.prefill_pool, less).ranks == base.prefill.ranks)
    --less;
  CHECK(!meets(less, plenty));
  if (base.decode.ranks > 2) CHECK(!meets(base.prefill.ranks, base.decode.ranks - 2));
  // The closed form knows means only; the two are of one order.
  CHECK(static_cast<double>(base.prefill.ranks) > 0.8 * base.closed.prefill);
  CHECK(static_cast<double>(base.prefill.ranks) < 2 * base.closed.prefill + 4);
  CHECK(plan->cost_per_hour(base) == 2 * static_cast<double>(base.gpus()));
  REQUIRE(plan->sensitivities.size() == 6);
  CHECK(plan->sensitivities[0].gpus() <= base.gpus());
  CHECK(plan->sensitivities[1].gpus() >= base.gpus());
  CHECK(plan->sensitivities[3].demand.hit_rate() == 0);
  CHECK(plan->sensitivities[3].prefill.ranks > base.prefill.ranks);
  const auto again = plan_deployment(profile, trace, options);
  REQUIRE(again);
  CHECK(to_json(*again) == to_json(*plan));
}

TEST_CASE("more load never needs fewer ranks") {
  const routing::Profile profile = estimates();
  for (const char* kind : {"chat", "poisson"}) {
    auto trace = evaluate::generate(kind, {.requests_per_second = 8, .seconds = 60, .seed = 4});
    REQUIRE(trace);
    PoolSize prefill;
    PoolSize decode;
    for (const double copies : {0.3, 0.8, 1.5, 2.5, 4.0}) {
      CAPTURE(kind);
      CAPTURE(copies);
      const auto plan = plan_deployment(profile, *trace, short_plan(copies));
      REQUIRE(plan);
      CHECK(plan->base.prefill.ranks >= prefill.ranks);
      CHECK(plan->base.decode.ranks >= decode.ranks);
      prefill = plan->base.prefill;
      decode = plan->base.decode;
    }
    CHECK(prefill.ranks > 2);
  }
}

TEST_CASE("what can't be planned says why") {
  const evaluate::Trace trace = chat();
  const auto why = [&](const routing::Profile& profile, const PlanOptions& options) {
    const auto plan = plan_deployment(profile, trace, options);
    REQUIRE(!plan);
    return fmt::format("{}", plan.error().message);
  };
  routing::Profile profile = estimates();
  PlanOptions options = short_plan(1);
  profile.costs.step.base = 0.06;
  CHECK(why(profile, options).find("an empty decode step takes 65.4 ms") != std::string::npos);
  profile = estimates();
  profile.context_tokens_max = 100;
  CHECK(why(profile, options).find("take 100") != std::string::npos);
  profile = estimates();
  profile.decode_pool.kv_tokens = 50;
  CHECK(why(profile, options).find("has KV for 50") != std::string::npos);
  options.cluster.slo.ttft_limit = 1e-4;
  options.cluster.slo.ttft_ratio = 0.1;
  CHECK(why(estimates(), options).find("no number of ranks meets") != std::string::npos);
  options = short_plan(1);
  options.load.warmup = seconds(40);
  CHECK(why(estimates(), options).find("nobody arrives") != std::string::npos);
  CHECK(!plan_deployment(routing::Profile{}, trace, short_plan(1)));
}

TEST_CASE("a small trace on the embedded engine's profile, as text") {
  const routing::Profile profile = profile_of("tests/cases/profiles/round-numbers.json");
  test::run_cases("plan/embedded.txt", [&](const std::string& input) {
    auto trace = evaluate::read_trace(input + "\n");
    REQUIRE(trace);
    PlanOptions options = short_plan(1);
    options.load.duration = seconds(20);
    options.load.warmup = seconds(2);
    const auto plan = plan_deployment(profile, *trace, options);
    if (!plan) return plan.error().message;
    boost::json::object shown = boost::json::parse(to_json(*plan)).as_object();
    shown.erase("simulated");  // it changes with every policy
    std::string text;
    for (const auto& [key, value] : shown)
      text += fmt::format("{}: {}\n", std::string_view(key), boost::json::serialize(value));
    text.pop_back();
    return text;
  });
}

}  // namespace
}  // namespace penstock::sim
