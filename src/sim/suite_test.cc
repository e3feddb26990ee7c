#include "sim/suite.h"

#include <boost/json.hpp>
#include <iterator>
#include <map>
#include <string>

#include "evaluate/generate.h"
#include "sim/html_report.h"

#include <doctest/doctest.h>

namespace penstock::sim {
namespace {

routing::Profile four_and_four() {
  routing::Profile p;
  p.name = "four";
  p.basis = routing::ProfileBasis::kPlaceholder;
  p.prefill_pool = {
      .ranks = 4, .group_ranks = 2, .host_ranks = 2, .kv_tokens = 10'000'000, .requests_max = 100};
  p.decode_pool = {
      .ranks = 4, .group_ranks = 4, .host_ranks = 2, .kv_tokens = 10'000'000, .requests_max = 500};
  p.costs.prefill = {0.008, 2e-5, 5.8e-11};
  p.costs.step = {0.012, 3.6e-5, 1.9e-10};
  p.costs.load.fill({0.001, 6e9});
  p.costs.transfer_same_zone = {0.0003, 6e9};
  p.costs.transfer_other_zone = {0.002, 1.5e9};
  p.costs.prefill_moe = {1.05, 0.2};
  p.costs.decode_moe = {1.09, 0.2};
  p.kv_bytes_per_token = 890;
  p.chunk_budget_seconds = 0.2;
  p.chunk_tokens_max = 16'384;
  p.context_tokens_max = 1'048'576;
  return p;
}

evaluate::Trace workload(std::string_view kind, double rate) {
  auto trace = evaluate::generate(kind, {.requests_per_second = rate, .seconds = 80, .seed = 2});
  REQUIRE(trace);
  return std::move(*trace);
}

TEST_CASE("the balance suite: nobody above the bound, the default first, one digest") {
  const evaluate::Trace trace = workload("poisson", 5);
  SuiteOptions options;
  options.plan = {.duration = std::chrono::seconds(30),
                  .warmup = std::chrono::seconds(10),
                  .seed = 1,
                  .tolerance = 0.05};
  options.policies = {"round-robin"};
  const auto result = run_balance_suite(four_and_four(), trace, options);
  REQUIRE(result);
  REQUIRE(result->policies.size() == 2);
  CHECK(result->policies[0].policy == "default");
  CHECK(result->bound_copies > 0);
  CHECK(result->clairvoyant_copies <= result->bound_copies);
  for (const PolicyResult& p : result->policies) {
    CAPTURE(p.policy);
    CHECK(p.efficiency > 0.1);
    CHECK(p.efficiency <= 1);
    CHECK(p.figures.met);
  }
  const auto again = run_balance_suite(four_and_four(), trace, options);
  REQUIRE(again);
  CHECK(again->digest == result->digest);
  CHECK(to_json(*again) == to_json(*result));
  const auto json = boost::json::parse(to_json(*result)).as_object();
  CHECK(json.at("default").as_object().at("efficiency").as_double() ==
        result->policies[0].efficiency);
  CHECK(json.at("policies").as_array().size() == 2);
}

TEST_CASE("parts of the suite: in any order, at once, with one digest") {
  const evaluate::Trace trace = workload("chat", 3);
  SuiteOptions options;
  options.plan = {.duration = std::chrono::seconds(30),
                  .warmup = std::chrono::seconds(10),
                  .seed = 1,
                  .tolerance = 0.1};
  options.with_variants = true;
  options.only = {"cache-10%", "gateways-4", "affinity"};
  const auto result = run_balance_suite(four_and_four(), trace, options);
  REQUIRE(result);
  CHECK(result->policies.empty());
  REQUIRE(result->variants.size() == 2);
  CHECK(result->variants[0].policy == "cache-10%");
  for (const PolicyResult& p : result->variants) {
    CAPTURE(p.policy);
    CHECK(p.efficiency > 0.1);
    CHECK(p.efficiency <= 1);
  }
  REQUIRE(result->affinity);
  const AffinityScene& scene = *result->affinity;
  // Any rank can use any prefix, so affinity gains nothing by keeping to some.
  CHECK(scene.balancer.hit_rate > scene.affinity.hit_rate - 0.01);
  CHECK(scene.balancer.prefill_balance <= scene.affinity.prefill_balance);
  options.run_all = [](const std::vector<std::function<void()>>& work) {
    for (std::size_t i = work.size(); i-- > 0;)
      work[i]();
  };
  const auto backwards = run_balance_suite(four_and_four(), trace, options);
  REQUIRE(backwards);
  CHECK(to_json(*backwards) == to_json(*result));
  // An alternative under a variant's conditions, and the clairvoyant schedule, by their names.
  options.only = {"gateways-4", "gateways-4/random", "clairvoyant"};
  const auto beside = run_balance_suite(four_and_four(), trace, options);
  REQUIRE(beside);
  REQUIRE(beside->variants.size() == 2);
  CHECK(beside->variants[0].copies == result->variants[1].copies);
  CHECK(beside->variants[1].policy == "gateways-4/random");
  CHECK(beside->variants[1].figures.digest != beside->variants[0].figures.digest);
  CHECK(beside->clairvoyant_copies > 0);
  CHECK(result->clairvoyant_copies == 0);
  options.only = {"gateways-4/chance"};
  CHECK(!run_balance_suite(four_and_four(), trace, options));
  options.only = {"cache-11%"};
  const auto unknown = run_balance_suite(four_and_four(), trace, options);
  REQUIRE(!unknown);
  CHECK(unknown.error().message.find("cache-10%, cache-25%") != std::string::npos);
}

TEST_CASE("the highest load: a hint changes how long it takes, not what is found") {
  for (const double edge : {0.02, 3.0, 61.0, 88.7, 117.9, 126.0, 140.0}) {
    std::size_t asked = 0;
    const auto meets = [&](double at) -> Result<bool> {
      ++asked;
      return at <= edge;
    };
    const auto plain = highest_load(meets, 126.3, 0.01);
    REQUIRE(plain);
    CHECK(*plain <= edge);
    CHECK(*plain * 1.01 >= edge);
    const std::size_t without = asked;
    for (const double hint : {0.001, 0.5, 60.0, 88.0, 118.0, 126.3, 500.0}) {
      CAPTURE(edge);
      CAPTURE(hint);
      CHECK(*highest_load(meets, 126.3, 0.01, hint) == *plain);
    }
    asked = 0;
    CHECK(*highest_load(meets, 126.3, 0.01, *plain) == *plain);
    CHECK(asked <= without);
    CHECK(asked <= 6);
  }
}

TEST_CASE("an interrupted suite goes on with what it has run") {
  const evaluate::Trace trace = workload("poisson", 5);
  std::map<std::string, std::string> runs;
  std::size_t made = 0;
  SuiteOptions options;
  options.plan = {.duration = std::chrono::seconds(20),
                  .warmup = std::chrono::seconds(5),
                  .seed = 1,
                  .tolerance = 0.1};
  options.with_variants = true;
  options.only = {"default", "round-robin", "gateways-1", "cache-100%", "affinity"};
  const auto plain = run_balance_suite(four_and_four(), trace, options);
  REQUIRE(plain);
  options.plan.memory = {.recall = [&](const std::string& key) -> std::optional<std::string> {
                           const auto found = runs.find(key);
                           return found == runs.end() ? std::nullopt : std::optional(found->second);
                         },
                         .keep =
                             [&](const std::string& key, const std::string& value) {
                               ++made;
                               CHECK(runs.emplace(key, value).second);  // nothing twice
                             }};
  const auto whole = run_balance_suite(four_and_four(), trace, options);
  REQUIRE(whole);
  CHECK(to_json(*whole) == to_json(*plain));
  const std::size_t all = made;
  made = 0;
  CHECK(to_json(*run_balance_suite(four_and_four(), trace, options)) == to_json(*plain));
  CHECK(made == 0);
  // As if it had been killed when it had half of them; one is not legible any more.
  while (runs.size() > all / 2)
    runs.erase(std::prev(runs.end()));
  runs.begin()->second = "1 2 x";
  const std::string broken = runs.begin()->first;
  const std::string kept = runs.begin()->second;
  options.plan.memory.keep = [&](const std::string& key, const std::string& value) {
    ++made;
    runs[key] = value;
  };
  CHECK(to_json(*run_balance_suite(four_and_four(), trace, options)) == to_json(*plain));
  CHECK(made == all - all / 2 + 1);
  CHECK(runs.at(broken) != kept);
  // Variants that change nothing are the default's own runs.
  CHECK(plain->variants[0].figures == plain->variants[1].figures);
}

TEST_CASE("a load without requests, and one that nothing can serve") {
  SuiteOptions options;
  options.plan = {.duration = std::chrono::seconds(30), .warmup = std::chrono::seconds(10)};
  CHECK(!run_balance_suite(routing::Profile{}, workload("poisson", 5), options));
  const auto none = policy_load(four_and_four(), evaluate::Trace{}, options.plan, {}, 1);
  REQUIRE(none);  // no load is ever too much
  CHECK(*none > 1000);
  routing::Profile slow = four_and_four();
  slow.costs.step.base = 1;  // no step is ever fast enough
  const auto hopeless = policy_load(slow, workload("poisson", 5), options.plan, {}, 1);
  REQUIRE(hopeless);
  CHECK(*hopeless < 0.3);
}

TEST_CASE("the HTML report needs nothing else and shows everything") {
  const evaluate::Trace trace = workload("agents", 5);
  const LoadPlan plan{.duration = std::chrono::seconds(80), .warmup = std::chrono::seconds(20)};
  const auto report =
      simulate(four_and_four(), trace, arrivals_of(trace, plan, 1), {.warmup = plan.warmup});
  REQUIRE(report);
  CHECK(report->samples.size() > 50);
  const std::string html = html_report(*report, "agents <1>");
  CHECK(html.find("agents &lt;1>") != std::string::npos);
  CHECK(html.find("http") == std::string::npos);
  CHECK(html.find("nan") == std::string::npos);
  CHECK(html.find("inf") == std::string::npos);
  for (const char* plot :
       {"Time to the first token", "Gap between tokens", "Prefill: outstanding work",
        "Decode: running requests", "Decode: KV", "Queue in front", "Hit rate so far", "Balance"})
    CHECK(html.find(plot) != std::string::npos);
}

TEST_CASE("one prompt of 256K tokens hardly delays short ones") {
  routing::Profile profile = four_and_four();
  profile.prefill_pool.ranks = profile.decode_pool.ranks = 16;
  profile.prefill_pool.group_ranks = profile.prefill_pool.host_ranks = 8;
  profile.decode_pool.group_ranks = profile.decode_pool.host_ranks = 8;
  for (const std::uint64_t seed : {1, 2, 3}) {
    const auto scene = long_prompt_scene(profile, seed);
    REQUIRE(scene);
    MESSAGE("seed " << seed << ": " << scene->p99_with << " s with it, " << scene->p99_without
                    << " s without");
    CHECK(scene->p99_without > 0);
    CHECK(scene->ratio() <= 1.2);
  }
}

}  // namespace
}  // namespace penstock::sim
