#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "sim/block_cache.h"
#include "sim/cluster.h"
#include "sim/decode_engine.h"
#include "sim/event_queue.h"
#include "sim/histogram.h"
#include "sim/prefill_engine.h"
#include "sim/rank_reports.h"
#include "sim/tiered_cache.h"

#include <doctest/doctest.h>

namespace penstock::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Instant at(double s) {
  return Instant{} + routing::to_duration(s);
}

// --- event queue

TEST_CASE("events run in time, then in the order of their calls; cancelled ones don't") {
  EventQueue queue;
  std::vector<int> ran;
  queue.call_at(at(2), [&] { ran.push_back(4); });
  queue.call_at(at(1), [&] {
    ran.push_back(1);
    queue.post([&] { ran.push_back(3); });
    queue.call_at(at(0), [&] { ran.push_back(33); });  // in the past: now
  });
  queue.call_at(at(1), [&] { ran.push_back(2); });
  const auto never = queue.call_at(at(1.5), [&] { ran.push_back(99); });
  queue.cancel(never);
  queue.cancel(never);
  CHECK(queue.run_until(at(1.7), 100));
  CHECK(ran == std::vector<int>{1, 2, 3, 33});
  CHECK(queue.now() == at(1.7));
  CHECK(!queue.empty());
  CHECK(queue.run(100));
  CHECK(ran.back() == 4);
  CHECK(queue.now() == at(2));
  CHECK(queue.empty());
  queue.cancel(never);
  CHECK(queue.empty());
}

TEST_CASE("what repeats for ever is found out, and nothing is lost") {
  EventQueue queue;
  int ran = 0;
  std::function<void()> again = [&] {
    ++ran;
    queue.post(again);
  };
  queue.post(again);
  CHECK(!queue.run_until(at(1), 1000));
  CHECK(ran == 1000);
  CHECK(!queue.run_until(at(1), 10));
  CHECK(ran == 1010);
}

// --- histogram and cache

TEST_CASE("quantiles are within a percent") {
  Histogram h;
  CHECK(h.quantile(0.99) == 0);
  CHECK(h.share_within(1) == 1);
  for (int i = 1; i <= 10'000; ++i)
    h.add(i * 1e-3);
  for (const double q : {0.01, 0.5, 0.9, 0.99, 1.0})
    CHECK(h.quantile(q) == doctest::Approx(10 * q).epsilon(0.011));
  CHECK(h.share_within(5) == doctest::Approx(0.5).epsilon(0.02));
  CHECK(h.mean() == doctest::Approx(5.0005));
  h.add(0);
  h.add(1e9);
  CHECK(h.quantile(1) >= 1e4);
}

TEST_CASE("the cache: prefixes, least recently used first, time to live") {
  BlockCache cache(4, seconds(10));
  const std::vector<std::uint64_t> a{1, 2, 3};
  const std::vector<std::uint64_t> b{1, 5};
  CHECK(cache.match(a, at(0)) == 0);
  cache.insert(a, at(0));
  CHECK(cache.match(a, at(1)) == 3);
  CHECK(cache.match(b, at(1)) == 1);
  cache.insert(b, at(2));
  CHECK(cache.size() == 4);
  cache.insert(std::vector<std::uint64_t>{6}, at(3));  // 3, the end of its prompt, is the oldest
  CHECK(cache.peek(a, at(3)) == 2);
  CHECK(cache.match(b, at(3)) == 2);
  CHECK(cache.peek(b, at(14)) == 0);
  CHECK(cache.match(b, at(14)) == 0);
  CHECK(cache.size() == 0);
  BlockCache none(0, seconds(1));
  none.insert(a, at(0));
  CHECK(none.match(a, at(0)) == 0);
}

TEST_CASE("tiers: what host memory has, then disk, then the store") {
  TieredCache cache({CacheTier{.blocks = 4}, CacheTier{.blocks = 8}, CacheTier{.blocks = 100}}, 2);
  const std::vector<std::uint64_t> a{1, 2, 3, 4};
  CHECK(cache.peek(0, a, at(0)).total() == 0);
  cache.insert(0, a, at(0));
  const TierHit here = cache.match(0, a, at(1));  // two in host memory, four on disk
  CHECK(here.blocks == std::array<std::size_t, 3>{2, 2, 0});
  CHECK(cache.peek(1, a, at(1)).blocks == std::array<std::size_t, 3>{0, 0, 4});
  cache.lose(0);
  CHECK(cache.peek(0, a, at(2)).blocks == std::array<std::size_t, 3>{0, 4, 0});
  // One engine's own memory alone.
  TieredCache one({CacheTier{.blocks = 4}, CacheTier{}, CacheTier{}}, 1);
  one.insert(0, a, at(0));
  CHECK(one.match(0, a, at(1)).blocks == std::array<std::size_t, 3>{4, 0, 0});
  // Without a store and other tiers nothing is kept.
  TieredCache none({}, 3);
  none.insert(0, a, at(0));
  CHECK(none.match(0, a, at(0)).total() == 0);
}

// --- reports

TEST_CASE("a gateway believes late reports plus what it has placed since") {
  RankReports reports(2, 1, 0.8);
  reports.placed(0, 0, {.seconds = 5}, at(0));
  auto snapshot = reports.snapshot(0, {.seconds = 3}, at(1));
  reports.placed(0, 0, {.seconds = 1}, at(1));
  reports.placed(1, 0, {.seconds = 7}, at(1));
  reports.arrive(std::move(snapshot), at(1));
  routing::RankView view;
  reports.fill(0, 0, view);
  CHECK(view.outstanding_seconds == doctest::Approx(4));
  reports.fill(1, 0, view);
  CHECK(view.outstanding_seconds == doctest::Approx(10));
}

TEST_CASE("a report that was on its way is brought up to date when it comes") {
  RankReports reports(2, 1, 0.8);
  routing::RankView view;
  auto snapshot =
      reports.snapshot(0, {.seconds = 0.4, .requests_waiting = 4, .kv_tokens = 100}, at(1));
  reports.placed(0, 0, {.seconds = 0.2, .requests_waiting = 2, .kv_tokens = 10}, at(1.25));
  auto later = reports.snapshot(0, {.seconds = 0.4}, at(1.3));
  reports.arrive(std::move(snapshot), at(1.5));
  reports.fill(0, 0, view);  // 0.4 s of work, and as much as can be done in half a second
  CHECK(view.outstanding_seconds == doctest::Approx(0.2));
  CHECK(view.waiting == 2);
  CHECK(view.kv_tokens == 110);
  reports.fill(1, 0, view);  // which does not know of the 0.2 s
  CHECK(view.outstanding_seconds == 0);
  CHECK(view.waiting == 0);
  CHECK(view.kv_tokens == 100);
  // An idle rank works off nothing before it is given something.
  reports.placed(1, 0, {.seconds = 1}, at(1.75));
  reports.arrive(std::move(later), at(1.8));
  reports.fill(1, 0, view);
  CHECK(view.outstanding_seconds == doctest::Approx(0.04 + 1 - 0.8 * 0.05));
}

// --- engines

routing::Profile small() {
  routing::Profile p;
  p.name = "small";
  p.basis = routing::ProfileBasis::kPlaceholder;
  p.prefill_pool = {
      .ranks = 4, .group_ranks = 2, .host_ranks = 2, .kv_tokens = 1'000'000, .requests_max = 100};
  p.decode_pool = {
      .ranks = 4, .group_ranks = 4, .host_ranks = 2, .kv_tokens = 100'000, .requests_max = 50};
  p.costs.prefill = {0.01, 1e-4, 0};
  p.costs.step = {0.01, 1e-4, 1e-8};
  p.costs.load.fill({0.001, 1e9});
  p.costs.transfer_same_zone = {0.001, 1e9};
  p.costs.transfer_other_zone = {0.001, 1e9};
  p.kv_bytes_per_token = 1000;
  p.chunk_budget_seconds = 0.11;
  p.chunk_tokens_max = 8192;
  p.context_tokens_max = 1'000'000;
  return p;
}

TEST_CASE("a prefill step lasts as long as its slowest rank") {
  EventQueue queue;
  const routing::Profile profile = small();
  std::vector<std::pair<std::uint64_t, double>> done;
  const PrefillEvents events{.started = [](RequestId) {},
                             .done =
                                 [&](RequestId id, std::int64_t) {
                                   done.emplace_back(id.value,
                                                     routing::to_seconds(queue.now() - Instant{}));
                                 },
                             .stepped = [](std::size_t) {},
                             .pull = {}};
  PrefillEngine engine(queue, profile, 0, 2, 1, events);
  engine.push(0, {RequestId(1), 0, 1500});  // 0.11 s for 1,000, then 500
  engine.push(1, {RequestId(2), 0, 100});
  CHECK(engine.outstanding_seconds(0) == doctest::Approx(0.16));
  CHECK(queue.run(1000));
  REQUIRE(done.size() == 2);
  CHECK(done[0].first == 2);
  CHECK(done[0].second == doctest::Approx(0.11));
  CHECK(done[1].second == doctest::Approx(0.11 + 0.06));
  CHECK(engine.busy_seconds() == doctest::Approx(0.17));
  CHECK(engine.outstanding_seconds(0) == 0);
}

TEST_CASE("decode: one token a step each, joining between steps, leaving at the end") {
  EventQueue queue;
  routing::Profile profile = small();
  std::vector<std::uint64_t> done;
  double last_seconds = 0;
  std::int64_t tokens = 0;
  const DecodeEvents events{.finished = [&](RequestId id) { done.push_back(id.value); },
                            .stepped =
                                [&](std::size_t, double s, std::int64_t n) {
                                  last_seconds = s;
                                  tokens += n;
                                },
                            .joined = [](RequestId) {},
                            .preempted = [](RequestId) {}};
  DecodeEngine engine(queue, profile, 0, 4, 1, events);
  engine.push(0, RequestId(1), 1000, 3);
  engine.push(0, RequestId(2), 1000, 1);
  engine.push(3, RequestId(3), 50'000, 2);
  CHECK(queue.run(1000));
  CHECK(done == std::vector<std::uint64_t>{2, 3, 1});
  CHECK(tokens == 6);
  CHECK(last_seconds == doctest::Approx(0.01 + 1e-4 + 1002e-8));
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(engine.running(r) == 0);
    CHECK(engine.kv_tokens(r) == 0);
  }
  CHECK(engine.preemptions() == 0);
}

TEST_CASE("decode: prompts take what answers leave of a step") {
  EventQueue queue;
  const routing::Profile profile = small();
  std::vector<std::pair<std::uint64_t, double>> done;
  std::vector<double> steps;
  const DecodeEvents events{
      .finished = [](RequestId) {},
      .stepped = [&](std::size_t, double s, std::int64_t) { steps.push_back(s); },
      .joined = [](RequestId) {},
      .preempted = [](RequestId) {},
      .prompt_done =
          [&](RequestId id, std::int64_t last) {
            done.emplace_back(id.value, routing::to_seconds(queue.now() - Instant{}));
            CHECK(last == (id.value == 1 ? 100 : 50));
          }};
  DecodeEngine engine(queue, profile, 0, 4, 1, events, 0.05);
  engine.push(1, RequestId(9), 1000, 4);
  // 0.04 s of each step are left, which is 400 tokens of the prompt.
  engine.push_prompt(0, {RequestId(1), 0, 900});
  engine.push_prompt(0, {RequestId(2), 0, 50});
  CHECK(engine.prompt_seconds(0) == doctest::Approx(0.095));
  CHECK(queue.run(1000));
  REQUIRE(done.size() == 2);
  CHECK(done[0].second == doctest::Approx(0.125));
  CHECK(done[1].second == doctest::Approx(0.125));
  REQUIRE(steps.size() == 4);  // the answer's, and none of them longer than that
  CHECK(*std::ranges::max_element(steps) == doctest::Approx(0.05));
  CHECK(steps[3] == doctest::Approx(0.01 + 1e-4 + 1003e-8));
  CHECK(engine.prompt_seconds(0) == 0);
  engine.push_prompt(3, {RequestId(3), 0, 400});
  CHECK(engine.fail().empty());
  CHECK(engine.prompts(3) == 0);
  CHECK(queue.run(1000));
  CHECK(done.size() == 2);
}

TEST_CASE("decode under pressure: pools hold, everyone finishes, with exactly their tokens") {
  Rng rng(5);
  for (int round = 0; round < 20; ++round) {
    EventQueue queue;
    routing::Profile profile = small();
    profile.decode_pool.kv_tokens = 5000;
    profile.decode_pool.requests_max = 8;
    std::size_t finished = 0;
    std::int64_t tokens = 0;
    std::int64_t wanted = 0;
    const DecodeEngine* watched = nullptr;
    const DecodeEvents events{.finished = [&](RequestId) { ++finished; },
                              .stepped =
                                  [&](std::size_t, double, std::int64_t n) {
                                    tokens += n;
                                    for (std::size_t r = 0; r < 4; ++r) {
                                      REQUIRE(watched->kv_tokens(r) <= 5000);
                                      REQUIRE(watched->running(r) <= 8);
                                    }
                                  },
                              .joined = [](RequestId) {},
                              .preempted = [](RequestId) {}};
    DecodeEngine engine(queue, profile, 0, 4, 1, events);
    watched = &engine;
    for (std::uint64_t i = 0; i < 200; ++i) {
      const auto left = static_cast<std::int64_t>(1 + rng.below(600));
      wanted += left;
      const auto context = static_cast<std::int64_t>(rng.below(3000));
      queue.call_at(at(5 * rng.uniform()), [&engine, i, context, left] {
        engine.push(i % 4, RequestId(i), context, left);
      });
    }
    CHECK(queue.run(1'000'000));
    CHECK(finished == 200);
    CHECK(tokens == wanted);
    CHECK(engine.preemptions() > 0);
    for (std::size_t r = 0; r < 4; ++r)
      CHECK(engine.kv_tokens(r) == 0);
  }
}

// --- cluster

evaluate::Trace conversations(int n) {
  std::string text;
  Rng rng(9);
  for (int i = 0; i < n; ++i) {
    const auto blocks = 1 + rng.below(6);
    std::string ids = "0";
    for (std::uint64_t b = 1; b < blocks; ++b)
      ids += ", " + std::to_string(1 + (i / 3) * 10 + b);
    text += "{\"timestamp\": " + std::to_string(i * 20) +
            ", \"input_length\": " + std::to_string(512 * blocks - rng.below(500)) +
            ", \"output_length\": " + std::to_string(1 + rng.below(200)) + ", \"hash_ids\": [" +
            ids + "]}\n";
  }
  auto trace = evaluate::read_mooncake(text);
  REQUIRE(trace);
  return std::move(*trace);
}

TEST_CASE("every policy: all that arrive finish, one seed gives one digest") {
  const evaluate::Trace trace = conversations(600);
  const auto arrivals = evaluate::scale(trace, {});
  std::vector<std::string> names{"default"};
  for (const auto name : routing::policy_names())
    names.emplace_back(name);
  for (const std::string& name : names)
    for (const CacheScope scope : {CacheScope::kCluster, CacheScope::kEngine}) {
      CAPTURE(name);
      const ClusterOptions options{.prefill_policy = name,
                                   .decode_policy = name,
                                   .cache_scope = scope,
                                   .gateways = 3,
                                   .report_lag = milliseconds(50),
                                   .report_loss = 0.05,
                                   .warmup = seconds(1)};
      const auto report = simulate(small(), trace, arrivals, options);
      REQUIRE(report);
      CHECK(report->refused == 0);
      CHECK(report->unfinished == 0);
      CHECK(report->finished == report->arrivals);
      CHECK(report->ttft.count() == report->arrivals);
      CHECK(report->hit_rate() > 0.05);
      CHECK(report->hit_rate() < 0.8);
      const auto again = simulate(small(), trace, arrivals, options);
      REQUIRE(again);
      CHECK(again->digest == report->digest);
      CHECK(to_json(*again) == to_json(*report));
      ClusterOptions other = options;
      other.report_lag = milliseconds(400);
      if (name != "random" && name != "round-robin" && name != "session-affinity")
        CHECK(simulate(small(), trace, arrivals, other)->digest != report->digest);
    }
}

TEST_CASE("slower tiers add hits, and cost more to load from") {
  const evaluate::Trace trace = conversations(900);
  const auto arrivals = evaluate::scale(trace, {});
  const auto run = [&](const ClusterOptions& options) {
    const auto report = simulate(small(), trace, arrivals, options);
    REQUIRE(report);
    CHECK(report->finished == report->arrivals);
    CHECK(simulate(small(), trace, arrivals, options)->digest == report->digest);
    return *report;
  };
  ClusterOptions options{
      .cache_scope = CacheScope::kEngine, .cache_blocks = 8, .warmup = seconds(1)};
  const Report host = run(options);
  CHECK(host.hit_blocks[1] + host.hit_blocks[2] == 0);
  options.disk.blocks = 10'000;
  const Report disk = run(options);
  CHECK(disk.hit_rate() > host.hit_rate());
  CHECK(disk.hit_blocks[1] > 0);
  options.disk = {};
  options.cache_scope = CacheScope::kCluster;
  options.cache_blocks = 0;
  options.host.blocks = 8;
  const Report all = run(options);
  CHECK(all.hit_blocks[0] > 0);
  CHECK(all.hit_blocks[2] > 0);
  CHECK(all.hit_rate() > disk.hit_rate());
}

TEST_CASE("too much load: the default serves more in time than the alternatives") {
  const evaluate::Trace trace = conversations(2000);
  const auto arrivals = evaluate::scale(trace, {.copies = 0.8});
  const auto served = [&](const std::string& name, bool queue) {
    ClusterOptions options{.prefill_policy = name,
                           .decode_policy = name,
                           .front = {.on = queue},
                           .warmup = seconds(5)};
    const auto report = simulate(small(), trace, arrivals, options);
    REQUIRE(report);
    CHECK(report->refused + report->finished == report->arrivals);
    return report->served_share();
  };
  const double ours = served("default", true);
  CHECK(ours > served("default", false));
  for (const auto name : routing::policy_names()) {
    CAPTURE(name);
    CHECK(ours > served(std::string(name), false));
  }
}

TEST_CASE("tenants and priorities: who asks for too much is late alone") {
  const evaluate::Trace trace = conversations(2000);
  const auto arrivals = evaluate::scale(trace, {.copies = 0.95});  // more than can be served
  const auto run = [&](std::vector<TenantShare> tenants) {
    ClusterOptions options{.tenants = std::move(tenants), .warmup = seconds(5)};
    const auto report = simulate(small(), trace, arrivals, options);
    REQUIRE(report);
    CHECK(report->refused + report->finished == report->arrivals);
    std::uint64_t arrived = 0;
    for (const TenantReport& tenant : report->tenants)
      arrived += tenant.arrivals;
    CHECK((report->tenants.empty() || arrived == report->arrivals));
    CHECK(simulate(small(), trace, arrivals, options)->digest == report->digest);
    return *report;
  };
  const Report alone = run({});
  CHECK(alone.first_in_time_share() < 0.9);
  // One tenant's requests go in the order they have without tenants.
  CHECK(run({{.name = "all"}}).digest == alone.digest);
  // A small one has its half of the ranks, and needs less.
  const Report unequal = run({{.name = "large", .share = 0.9}, {.name = "small", .share = 0.1}});
  CHECK(unequal.tenants[1].arrivals > 50);
  CHECK(unequal.tenants[1].in_time_share() > 0.99);
  CHECK(unequal.tenants[0].in_time_share() < alone.first_in_time_share() + 0.02);
  CHECK(unequal.tenants[1].ttft.quantile(0.9) < unequal.tenants[0].ttft.quantile(0.9));
  // Two that want the same, and one of them is to have three times as much.
  const Report weighed = run({{.name = "three", .weight = 3}, {.name = "one"}});
  CHECK(weighed.tenants[0].in_time_share() > weighed.tenants[1].in_time_share() + 0.1);
  const Report first = run({{.name = "first", .priority = 1}, {.name = "second"}});
  CHECK(first.tenants[0].in_time_share() > 0.99);
  CHECK(first.tenants[0].ttft.quantile(0.9) < first.tenants[1].ttft.quantile(0.9));
  for (const TenantShare& bad :
       {TenantShare{.name = "none", .share = 0}, TenantShare{.name = "light", .weight = -1}})
    CHECK(!simulate(small(), trace, arrivals, {.tenants = {bad}, .warmup = seconds(5)}));
}

TEST_CASE("engines fail, leave and come back: everyone ends once, with one digest") {
  const evaluate::Trace trace = conversations(800);
  const auto arrivals = evaluate::scale(trace, {.copies = 0.3});
  routing::Profile profile = small();
  profile.decode_pool.group_ranks = 2;
  for (const bool queue : {true, false})
    for (const CacheScope scope : {CacheScope::kCluster, CacheScope::kEngine}) {
      ClusterOptions options{.front = {.on = queue},
                             .cache_scope = scope,
                             .event_lag = milliseconds(50),
                             .event_loss = 0.1,
                             .zones = 2,
                             .warmup = seconds(1)};
      using enum ChangeKind;
      options.changes = {
          {seconds(3), Pool::kPrefill, 0, kFail},  {seconds(4), Pool::kDecode, 1, kFail},
          {seconds(6), Pool::kPrefill, 0, kJoin},  {seconds(7), Pool::kDecode, 1, kJoin},
          {seconds(8), Pool::kPrefill, 1, kDrain}, {seconds(10), Pool::kPrefill, 1, kJoin}};
      const auto report = simulate(profile, trace, arrivals, options);
      REQUIRE(report);
      CHECK(report->failures == 2);
      CHECK(report->placed_anew > 0);
      CHECK(report->unfinished == 0);
      CHECK(report->finished + report->refused == report->arrivals);
      const auto again = simulate(profile, trace, arrivals, options);
      REQUIRE(again);
      CHECK(again->digest == report->digest);
      options.changes.clear();
      const auto calm = simulate(profile, trace, arrivals, options);
      REQUIRE(calm);
      CHECK(calm->served_share() >= report->served_share());
      CHECK(calm->digest != report->digest);
    }
  CHECK(!simulate(profile, trace, arrivals,
                  {.changes = {{seconds(1), Pool::kDecode, 9, ChangeKind::kFail}}}));
}

TEST_CASE("prompts on decode ranks: more in time than without, and everyone ends once") {
  const evaluate::Trace trace = conversations(2000);
  const auto arrivals = evaluate::scale(trace, {.copies = 0.75});  // too much for the pool alone
  routing::Profile profile = small();
  profile.decode_pool.kv_tokens = 10'000'000;
  ClusterOptions options{.zones = 2, .warmup = seconds(5)};
  const auto apart = simulate(profile, trace, arrivals, options);
  options.prefill_on_decode = true;
  for (const std::size_t gateways : {1, 3})
    for (const bool queue : {true, false}) {
      options.gateways = gateways;
      options.front.on = queue;
      const auto report = simulate(profile, trace, arrivals, options);
      REQUIRE(report);
      CHECK(report->unfinished == 0);
      CHECK(report->finished + report->refused == report->arrivals);
      CHECK(report->prompts_on_decode > 50);
      CHECK(report->gaps.quantile(0.99) <= options.slo.tau);
      CHECK(simulate(profile, trace, arrivals, options)->digest == report->digest);
      MESSAGE("in time ", report->served_share(), ", without ", apart->served_share());
      if (gateways == 1 && queue) CHECK(report->served_share() > apart->served_share() + 0.02);
    }
  profile.decode_pool.group_ranks = 2;
  options.report_lag = milliseconds(50);
  options.changes = {{seconds(6), Pool::kDecode, 1, ChangeKind::kFail},
                     {seconds(12), Pool::kDecode, 1, ChangeKind::kJoin},
                     {seconds(15), Pool::kPrefill, 0, ChangeKind::kFail}};
  const auto failing = simulate(profile, trace, arrivals, options);
  REQUIRE(failing);
  CHECK(failing->placed_anew > 0);
  CHECK(failing->unfinished == 0);
  CHECK(failing->finished + failing->refused == failing->arrivals);
  options.cache_scope = CacheScope::kEngine;
  CHECK(!simulate(profile, trace, arrivals, options));
}

TEST_CASE("half a second of lag costs little: ranks are given more before they run dry") {
  const evaluate::Trace trace = conversations(3000);
  const auto arrivals = evaluate::scale(trace, {.copies = 0.55});
  ClusterOptions options{.warmup = seconds(5)};
  const auto now = simulate(small(), trace, arrivals, options);
  options.report_lag = options.event_lag = milliseconds(500);
  const auto late = simulate(small(), trace, arrivals, options);
  REQUIRE(now);
  REQUIRE(late);
  MESSAGE("in time: " << now->first_in_time_share() << ", with lag "
                      << late->first_in_time_share());
  CHECK(now->first_in_time_share() > 0.99);
  CHECK(late->first_in_time_share() > 0.98);
}

TEST_CASE("a lost report is made good: an idle rank is not busy for ever") {
  const evaluate::Trace trace = conversations(3000);
  const auto arrivals = evaluate::scale(trace, {.copies = 0.55});
  ClusterOptions options{.report_loss = 0.4, .warmup = seconds(5)};
  const auto report = simulate(small(), trace, arrivals, options);
  REQUIRE(report);
  CHECK(report->finished == report->arrivals);
  CHECK(report->first_in_time_share() > 0.99);
  options.heartbeat = {};
  const auto silent = simulate(small(), trace, arrivals, options);
  REQUIRE(silent);
  CHECK(silent->unfinished > 0);
  // Nobody ever says anything: what was placed at first is all, and the run ends all the same.
  options.heartbeat = milliseconds(200);
  options.report_loss = 1;
  const auto deaf = simulate(small(), trace, arrivals, options);
  REQUIRE(deaf);
  CHECK(deaf->unfinished > 0);
}

TEST_CASE("stopping early says no exactly when the whole run does") {
  const evaluate::Trace trace = conversations(1000);
  for (const double copies : {0.2, 0.35, 0.5, 0.8}) {
    const auto arrivals = evaluate::scale(trace, {.copies = copies});
    ClusterOptions options{.warmup = seconds(2)};
    const auto whole = simulate(small(), trace, arrivals, options);
    options.stop_early = true;
    const auto early = simulate(small(), trace, arrivals, options);
    REQUIRE(whole);
    REQUIRE(early);
    CHECK(whole->meets_slo() == early->meets_slo());
    if (!early->stopped_early) CHECK(whole->digest == early->digest);
  }
}

TEST_CASE("what can't be simulated is refused") {
  const evaluate::Trace trace = conversations(10);
  const auto arrivals = evaluate::scale(trace, {});
  CHECK(!simulate(small(), trace, {}, {}));
  CHECK(!simulate(small(), trace, arrivals, {.prefill_policy = "magic"}));
  CHECK(!simulate(small(), trace, arrivals, {.gateways = 0}));
  CHECK(!simulate(small(), trace, arrivals, {.warmup = std::chrono::hours(1)}));
  CHECK(!simulate(routing::Profile{}, trace, arrivals, {}));
}

}  // namespace
}  // namespace penstock::sim
