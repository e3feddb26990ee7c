#include "service/gateway/placement.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "core/routing/cost_model.h"

#include <doctest/doctest.h>

namespace penstock::gateway {
namespace {

WorkerView worker(std::uint64_t id, std::string name, WorkerRole role, std::uint32_t ranks = 1) {
  WorkerView view;
  view.description.id = WorkerId(id);
  view.description.epoch = Epoch(100 + id);
  view.description.name = std::move(name);
  view.description.role = role;
  if (role != WorkerRole::kMixed) view.description.transport = "shm:/" + view.description.name;
  ModelDescription model;
  model.name = "m";
  model.context_length = 4096;
  model.kv.kv_format = "f";
  model.kv_token_bytes = 1000;
  view.description.models.push_back(model);
  view.loads.resize(ranks);
  for (EngineLoad& load : view.loads)
    load.prefill = {0, 100e-6, 0};  // 0.1 ms a token
  view.connected = true;
  return view;
}

struct Plan {
  std::vector<WorkerView> workers = {
      worker(1, "p0", WorkerRole::kPrefill), worker(2, "p1", WorkerRole::kPrefill),
      worker(3, "d0", WorkerRole::kDecode), worker(4, "d1", WorkerRole::kDecode)};
  RankLedger ledger;
  PlacementLimits limits;
  EngineCosts costs;
  Placer placer;
  Rng rng{1};
  Instant now{};

  PlacementState state() { return {workers, ledger, costs, limits, now, rng}; }
  Result<Placement> place(const PlacementRequest& request) {
    return placer.place(state(), request);
  }
  Placement at(std::uint32_t tokens, std::uint32_t cached = 0) {
    auto placed = place({"m", tokens, cached});
    REQUIRE(placed);
    CHECK(!placed->reason.empty());
    return *placed;
  }
};

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a prompt goes to the prefill rank that begins it first, its answer to the idlest rank") {
  Plan plan;
  Placement placed = plan.at(2000);
  REQUIRE(placed.prefill);
  CHECK(placed.prefill->worker == WorkerId(1));
  CHECK(placed.decode.worker == WorkerId(3));
  CHECK(placed.transport == "shm:/p0");
  CHECK(placed.epoch == Epoch(101));
  CHECK(placed.fresh == 2000);
  plan.workers[0].loads[0].prompt_tokens_waiting = 500;
  plan.workers[2].loads[0].running = 3;
  plan.workers[3].loads[0].running = 2;
  placed = plan.at(2000);
  CHECK(placed.prefill->worker == WorkerId(2));
  CHECK(placed.decode.worker == WorkerId(4));
  // What this shard has placed counts before any load tells of it.
  const RankPermit permit(plan.ledger, {WorkerId(2), 0},
                          {1000, 1, 1000, std::chrono::milliseconds(100)});
  CHECK(plan.at(2000).prefill->worker == WorkerId(1));
}

TEST_CASE("ranks of one worker are told apart") {
  Plan plan;
  plan.workers = {worker(1, "p", WorkerRole::kPrefill, 2), worker(2, "d", WorkerRole::kDecode, 3)};
  plan.workers[0].loads[0].prompt_tokens_waiting = 10;
  plan.workers[1].loads[0].running = 1;
  plan.workers[1].loads[1].kv_tokens_used = Tokens(64);
  const Placement placed = plan.at(2000);
  CHECK(placed.prefill == RankId{WorkerId(1), 1});
  CHECK(placed.decode == RankId{WorkerId(2), 2});
  CHECK(placed.reason.starts_with("p/1 for d/2: 2000 tokens in 201.5 ms"));
}

TEST_CASE("the pool is skipped when that is faster and short, mostly for long hits") {
  Plan plan;
  Placement placed = plan.at(4000, 3950);  // 5 ms of work, after 0.84 ms of loading
  CHECK_FALSE(placed.prefill);
  CHECK(placed.decode.worker == WorkerId(3));
  CHECK(placed.fresh == 50);
  CHECK(placed.reason.find("its prompt too, 50 tokens in 5.8 ms") != std::string::npos);
  // Those it would hold up count.
  plan.workers[2].loads[0].running = 8;
  plan.workers[3].loads[0].running = 8;
  CHECK(plan.at(4000, 3950).prefill);
  // Nor when the pool is as fast, nor beyond the limit, however busy the pool is.
  plan.workers[0].loads[0].prompt_tokens_waiting = 100'000;
  plan.workers[1].loads[0].prompt_tokens_waiting = 100'000;
  CHECK_FALSE(plan.at(4000, 3950).prefill);
  CHECK(plan.at(4000, 3700).prefill);
  plan.limits.local_prefill_max = Duration::zero();
  CHECK(plan.at(4000, 3950).prefill);
}

TEST_CASE("the time of a transfer between zones counts") {
  Plan plan;
  plan.workers[0].description.zone = "west";
  plan.limits.bandwidth_far = 1e6;  // 2 s for 2 MB
  CHECK(plan.at(2000).prefill->worker == WorkerId(2));
  plan.workers[1].loads[0].prompt_tokens_waiting = 100'000;  // 10 s
  CHECK(plan.at(2000).prefill->worker == WorkerId(1));
}

TEST_CASE("only workers with the same KV and a way between them make a pair") {
  Plan plan;
  plan.workers[0].description.models[0].kv.kv_format = "another";
  CHECK(plan.at(2000).prefill->worker == WorkerId(2));
  plan.workers[1].description.transport.clear();
  const Placement placed = plan.at(2000);
  CHECK_FALSE(placed.prefill);
  CHECK(placed.reason.find("no prefill worker has the same KV") != std::string::npos);
}

TEST_CASE("a pool that is gone or draining is replaced by the others") {
  Plan plan;
  plan.workers[0].connected = false;
  plan.workers[1].draining = true;
  Placement placed = plan.at(2000);
  CHECK_FALSE(placed.prefill);
  CHECK(placed.decode.worker == WorkerId(3));
  plan.workers = Plan().workers;
  plan.workers[2].connected = false;
  plan.workers[3].draining = true;
  placed = plan.at(2000);
  CHECK_FALSE(placed.prefill);
  CHECK(placed.decode.worker == WorkerId(1));
  plan.workers[0].connected = plan.workers[1].connected = false;
  const auto none = plan.place({"m", 10});
  REQUIRE(!none);
  CHECK(none.error().code == ErrorCode::kUnavailable);
  CHECK(none.error().message.find("draining: 1") != std::string::npos);
  CHECK_FALSE(is_served(plan.workers, "m"));
  CHECK_FALSE(Plan().place({"other", 10}));
}

TEST_CASE("mixed workers do both") {
  Plan plan;
  plan.workers = {worker(1, "m0", WorkerRole::kMixed), worker(2, "m1", WorkerRole::kMixed)};
  plan.workers[0].loads[0].waiting = 1;
  const Placement placed = plan.at(2000);
  CHECK_FALSE(placed.prefill);
  CHECK(placed.decode.worker == WorkerId(2));
}

TEST_CASE("every policy places, and the reason says which one and why") {
  for (const std::string_view prefill : prefill_policy_names()) {
    for (const std::string_view decode : decode_policy_names()) {
      CAPTURE(prefill);
      CAPTURE(decode);
      Plan plan;
      auto made = Placer::make({std::string(prefill), std::string(decode)});
      REQUIRE(made);
      plan.placer = std::move(*made);
      for (int i = 0; i < 20; ++i) {
        const Placement placed = plan.at(2000);
        REQUIRE(placed.prefill);
        CHECK(placed.prefill->worker <= WorkerId(2));
        CHECK(placed.decode.worker >= WorkerId(3));
        CHECK(contains(placed.reason, std::string(prefill) + ": "));
        CHECK(contains(placed.reason, std::string(decode) + ": "));
      }
    }
  }
  const auto unknown = Placer::make({"best", "decode-balancer"});
  REQUIRE(!unknown);
  CHECK(contains(unknown.error().message,
                 "unknown prefill policy \"best\"; there are: "
                 "prefill-balancer, random, round-robin"));
  CHECK_FALSE(Placer::make({"prefill-balancer", "prefill-balancer"}));
}

TEST_CASE("round robin takes turns at both ends") {
  Plan plan;
  plan.placer = *Placer::make({"round-robin", "round-robin"});
  std::vector<std::uint64_t> prefill;
  std::vector<std::uint64_t> decode;
  for (int i = 0; i < 4; ++i) {
    const Placement placed = plan.at(2000);
    prefill.push_back(placed.prefill->worker.value);
    decode.push_back(placed.decode.worker.value);
  }
  CHECK((prefill == std::vector<std::uint64_t>{1, 2, 1, 2}));
  CHECK((decode == std::vector<std::uint64_t>{3, 4, 3, 4}));
}

TEST_CASE("a session stays where it is, and another policy's choice still needs the same KV") {
  Plan plan;
  plan.placer = *Placer::make({"session-affinity", "session-affinity"});
  std::map<std::uint64_t, int> homes;
  for (std::uint64_t session = 1; session < 40; ++session) {
    PlacementRequest request{"m", 2000};
    request.session = session;
    const RankId home = *plan.place(request)->prefill;
    CHECK(plan.place(request)->prefill == home);
    ++homes[home.worker.value];
  }
  CHECK(homes.size() == 2);
  plan.workers[0].description.models[0].kv.kv_format = "another";
  for (std::uint64_t session = 1; session < 40; ++session) {
    PlacementRequest request{"m", 2000};
    request.session = session;
    CHECK(plan.place(request)->prefill->worker == WorkerId(2));
  }
}

// Mean wait of 4,000 prompts of very different lengths on 8 ranks at 60 %, each FIFO.
double mean_wait(const PolicyNames& names) {
  Plan plan;
  plan.placer = *Placer::make(names);
  plan.limits.local_prefill_max = Duration::zero();
  plan.workers = {worker(1, "p", WorkerRole::kPrefill, 8), worker(2, "d", WorkerRole::kDecode)};
  struct Running {
    Instant ends;
    RankPermit permit;
  };
  std::vector<Running> running;
  std::array<Instant, 8> free_at{};
  Rng rng(11);
  double waited = 0;
  constexpr int kPrompts = 4000;
  for (int i = 0; i < kPrompts; ++i) {
    // 0.02 s most, 1 s every tenth: 0.118 s on average.
    plan.now += routing::to_duration(-std::log(1 - rng.uniform()) * 0.118 / (8 * 0.6));
    std::erase_if(running, [&](const Running& r) { return r.ends <= plan.now; });
    const Placement placed = plan.at(rng.below(10) == 0 ? 10'000 : 200);
    Instant& free = free_at[placed.prefill->rank];
    const Instant begins = std::max(free, plan.now);
    free = begins + placed.compute;
    waited += routing::to_seconds(begins - plan.now);
    running.push_back(
        {free, RankPermit(plan.ledger, *placed.prefill,
                          {placed.fresh, 1, placed.prompt_kv_tokens, placed.compute})});
  }
  return waited / kPrompts;
}

TEST_CASE("at middle load prompts wait far less than in round robin") {
  const double balanced = mean_wait({});
  const double in_turn = mean_wait({"round-robin", "decode-balancer"});
  CHECK(in_turn > 0.1);
  CHECK(balanced < 0.5 * in_turn);
}

TEST_CASE("KV that is promised counts, and room on decode ranks is respected while there is any") {
  Plan plan;
  for (std::size_t i : {2, 3}) {
    plan.workers[i].loads[0].kv_tokens_total = Tokens(10'000);
    plan.workers[i].loads[0].running = 1;
  }
  plan.workers[3].loads[0].kv_tokens_used = Tokens(1000);
  PlacementRequest request{"m", 3000};
  request.output = 500;
  request.choices = 2;
  CHECK(plan.place(request)->decode.worker == WorkerId(3));
  CHECK(plan.place(request)->kv_tokens == 4000);
  const RankPermit promised(plan.ledger, {WorkerId(3), 0}, {0, 1, 8000, {}});
  CHECK(plan.place(request)->decode.worker == WorkerId(4));
  CHECK(plan.placer.has_room(plan.state(), request));
  // Nobody has room: a request that is placed all the same waits in its engine.
  plan.workers[3].loads[0].kv_tokens_used = Tokens(7000);
  CHECK_FALSE(plan.placer.has_room(plan.state(), request));
  CHECK(plan.place(request)->decode.worker == WorkerId(4));
  // An idle rank takes what is too large for it: the engine says so, nobody waits for ever.
  plan.workers[3].loads[0].running = 0;
  CHECK(plan.placer.has_room(plan.state(), request));
  request.tokens = 20'000;
  CHECK(plan.place(request)->decode.worker == WorkerId(4));
}

TEST_CASE("a hit is as long as it can be resumed, and read where it is fastest") {
  PlacementRequest request;
  request.set_cached(
      {.resumable = Tokens(100), .host = Tokens(40), .disk = Tokens(30), .cluster = Tokens(30)});
  CHECK(request.cached == 100);
  CHECK(request.cached_on_disk == 30);
  CHECK(request.cached_remotely == 30);
  // More is held than can be used.
  request.set_cached(
      {.resumable = Tokens(64), .host = Tokens(40), .disk = Tokens(80), .cluster = Tokens(0)});
  CHECK(request.cached_on_disk == 24);
  CHECK(request.cached_remotely == 0);
}

TEST_CASE("a hit costs its load, by where it is held and what else its host loads") {
  Plan plan;
  plan.workers[0].description.models[0].kv_token_bytes = 100'000;
  plan.workers[1].description.models[0].kv_token_bytes = 100'000;
  PlacementRequest request{"m", 4000, 3000};  // 1000 to compute: 0.1 s
  const auto loads = [&](std::uint32_t on_disk, std::uint32_t remotely) {
    request.cached_on_disk = on_disk;
    request.cached_remotely = remotely;
    return routing::to_seconds(plan.place(request)->load);
  };
  // 300 MB: 5 GB/s of memory, 0.5 GB/s of disk, 0.4 GB/s from elsewhere.
  CHECK(loads(0, 0) == doctest::Approx(0.06).epsilon(0.01));
  CHECK(loads(3000, 0) == doctest::Approx(0.6).epsilon(0.01));
  CHECK(loads(0, 3000) == doctest::Approx(0.755).epsilon(0.01));
  CHECK(loads(1500, 0) == doctest::Approx(0.33).epsilon(0.01));
  // Reads are spread: the link of p0 is busy, its compute is not.
  request.cached_on_disk = 3000;
  CHECK(plan.place(request)->prefill->worker == WorkerId(1));
  const RankPermit reading(plan.ledger, {WorkerId(1), 0},
                           {1, 1, 10, {}, std::chrono::milliseconds(500)});
  CHECK(plan.place(request)->prefill->worker == WorkerId(2));
  const PlacementExplanation explained = plan.placer.explain();
  CHECK(explained.cached_on_disk == 3000);
  REQUIRE(explained.prefill);
  REQUIRE(explained.prefill->best.size() == 2);
  CHECK(explained.prefill->best[0].load_seconds == doctest::Approx(0.6).epsilon(0.01));
  CHECK(explained.prefill->best[1].load_seconds == doctest::Approx(1.1).epsilon(0.01));
  // Without a hit the link does not matter, and with one a full link is a reason to wait.
  CHECK(plan.at(4000).prefill->worker == WorkerId(1));
  const RankPermit more(plan.ledger, {WorkerId(1), 0}, {1, 1, 10, {}, std::chrono::seconds(5)});
  const RankPermit other(plan.ledger, {WorkerId(2), 0}, {1, 1, 10, {}, std::chrono::seconds(5)});
  CHECK_FALSE(plan.placer.has_room(plan.state(), request));
  CHECK(plan.placer.has_room(plan.state(), {"m", 4000}));
}

TEST_CASE("a step of ranks that step together takes as long as the slowest of them") {
  routing::CostSeeds seeds;
  seeds.step = {0.010, 0.001, 0};  // 10 ms, 1 ms a request
  seeds.decode_moe.mean = 1.1;
  Plan plan;
  plan.costs = EngineCosts({{"e", seeds}});
  // d0 and d1 are one engine; d2 is another one.
  plan.workers.push_back(worker(5, "d2", WorkerRole::kDecode));
  for (WorkerView& w : plan.workers)
    w.description.engine = "e 1";
  plan.workers[2].description.step_group = plan.workers[3].description.step_group = "g";
  plan.workers[2].loads[0].running = 30;
  plan.workers[3].loads[0].running = 2;
  plan.workers[4].loads[0].running = 20;
  const PlacementRequest request{"m", 100};
  CHECK(plan.place(request)->decode.worker == WorkerId(4));
  const PlacementExplanation explained = plan.placer.explain();
  REQUIRE(explained.decode->best.size() == 3);
  CHECK(explained.decode->best[0].step_seconds == doctest::Approx(0.044));  // d0's 30
  CHECK(explained.decode->best[1].rank == "d2");
  CHECK(explained.decode->best[1].step_seconds == doctest::Approx(0.0341));
  CHECK(explained.decode->best[2].step_seconds == doctest::Approx(0.0451));
  CHECK(explained.decode->best[0].moe_lb == 0);
  // Once its experts' loads are known they count instead of the profile's 1.1.
  for (const std::uint64_t passes : {1, 2}) {
    plan.workers[2].experts = {ExpertUse{1, 0, {100 * passes}, {150 * passes}}};
    plan.costs.watch(plan.workers);
  }
  CHECK(plan.place(request)->decode.worker == WorkerId(4));
  const PlacementExplanation uneven = plan.placer.explain();
  CHECK(uneven.decode->best[0].step_seconds == doctest::Approx(0.060));
  CHECK(uneven.decode->best[1].step_seconds == doctest::Approx(0.0341));
  CHECK(uneven.decode->best[2].rank == "d0");
  CHECK(uneven.decode->best[2].moe_lb == doctest::Approx(1.5));
  plan.workers[2].experts.clear();
  plan.costs.watch(plan.workers);
  // With a limit on steps, the whole group is out although d1 has little to do.
  plan.limits.step_time_max = std::chrono::milliseconds(40);
  CHECK(plan.placer.has_room(plan.state(), request));
  CHECK(plan.place(request)->decode.worker == WorkerId(5));
  plan.limits.step_time_max = std::chrono::milliseconds(34);
  CHECK_FALSE(plan.placer.has_room(plan.state(), request));
  CHECK(plan.place(request)->decode.worker == WorkerId(4));  // when it must go somewhere
  // Nobody waits for an idle engine, whatever the limit.
  plan.workers[4].loads[0].running = 0;
  plan.limits.step_time_max = std::chrono::milliseconds(1);
  CHECK(plan.placer.has_room(plan.state(), request));
  CHECK(plan.place(request)->decode.worker == WorkerId(5));
}

TEST_CASE("a prompt on a decode rank holds up all that step with it") {
  Plan plan;
  CHECK_FALSE(plan.at(4000, 3950).prefill);
  for (std::size_t i : {2, 3})
    plan.workers[i].description.step_group = "g";
  plan.workers[3].loads[0].running = 8;
  CHECK(plan.at(4000, 3950).prefill);  // d0 is idle, but d1 would wait with it
  plan.workers[3].description.step_group.clear();
  CHECK_FALSE(plan.at(4000, 3950).prefill);
}

TEST_CASE("new prompts wait in front while every rank that computes them has a backlog") {
  Plan plan;
  const PlacementRequest request{"m", 100};
  plan.workers[0].loads[0].prompt_tokens_waiting = 30'000;  // 3 s
  CHECK(plan.placer.has_room(plan.state(), request));
  plan.workers[1].loads[0].prompt_tokens_waiting = 30'000;
  CHECK_FALSE(plan.placer.has_room(plan.state(), request));
  plan.limits.prefill_backlog = std::chrono::seconds(4);
  CHECK(plan.placer.has_room(plan.state(), request));
  plan.limits.prefill_backlog = std::chrono::seconds(2);
  plan.limits.disaggregate = false;  // decode ranks compute, and have nothing to do
  CHECK(plan.placer.has_room(plan.state(), request));
  // With nobody there, there is nothing to wait for in the queue.
  plan.workers.clear();
  CHECK(plan.placer.has_room(plan.state(), request));
}

TEST_CASE("the last decision is explained: candidates, scores, reasons, at most so many") {
  Plan plan;
  plan.workers = {worker(1, "p", WorkerRole::kPrefill, 40), worker(2, "d", WorkerRole::kDecode, 2)};
  plan.workers[0].loads[0].prompt_tokens_waiting = 10;
  plan.workers[1].loads[0].running = 3;
  const Placement placed = plan.at(2000, 500);
  const PlacementExplanation explained = plan.placer.explain();
  CHECK(explained.model == "m");
  CHECK(explained.tokens == 2000);
  CHECK(explained.cached_tokens == 500);
  CHECK(explained.summary == placed.reason);
  REQUIRE(explained.prefill);
  CHECK(explained.prefill->policy == "prefill-balancer");
  CHECK(explained.prefill->ranks == 40);
  CHECK(explained.prefill->candidates == 40);
  CHECK(explained.prefill->chosen == fmt::format("p/{}", placed.prefill->rank));
  REQUIRE(explained.prefill->best.size() == LegExplanation::kCandidatesShown);
  CHECK(explained.prefill->best[0].rank == explained.prefill->chosen);
  CHECK(explained.prefill->best[0].compute_seconds == doctest::Approx(0.15));
  REQUIRE(explained.decode);
  CHECK(explained.decode->chosen == "d/1");
  REQUIRE(explained.decode->best.size() == 2);
  CHECK(explained.decode->best[1].rank == "d/0");
  CHECK(explained.decode->best[1].requests == 3);
  CHECK(*explained.decode->best[0].score < *explained.decode->best[1].score);
  // A mixed rank decides alone.
  plan.workers = {worker(1, "a", WorkerRole::kMixed)};
  plan.at(10);
  CHECK_FALSE(plan.placer.explain().prefill);
  CHECK(plan.placer.explain().decode->reason == "only candidate");
}

TEST_CASE("decisions over many ranks need no more memory than the first one") {
  Plan plan;
  plan.limits.local_prefill_max = Duration::zero();
  plan.workers.clear();
  for (std::uint64_t id = 1; id <= 128; ++id)
    plan.workers.push_back(
        worker(id, "w", id % 2 != 0 ? WorkerRole::kPrefill : WorkerRole::kDecode, 8));
  std::vector<RankPermit> permits;
  for (std::uint32_t i = 0; i < 3000; ++i) {
    plan.now += std::chrono::milliseconds(10);
    PlacementRequest request{"m", 100 + i % 3000};
    request.output = 100;
    const auto placed = plan.place(request);
    REQUIRE(placed);
    REQUIRE(placed->prefill);
    permits.emplace_back(
        plan.ledger, *placed->prefill,
        RankLedger::Entry{placed->fresh, 1, placed->prompt_kv_tokens, placed->compute});
    permits.emplace_back(plan.ledger, placed->decode,
                         RankLedger::Entry{0, 1, placed->kv_tokens, {}});
    if (permits.size() > 1024) permits.erase(permits.begin(), permits.begin() + 2);
  }
  // Level: 512 requests at a time on 512 ranks.
  std::uint32_t most = 0;
  for (const WorkerView& w : plan.workers)
    for (const auto& [rank, entry] : plan.ledger.of_worker(w.description.id))
      if (w.description.role == WorkerRole::kDecode) most = std::max(most, entry.requests);
  CHECK(most <= 2);
  permits.clear();
  CHECK(plan.ledger.empty());
}

TEST_CASE("a ledger is empty when its permits are gone") {
  RankLedger ledger;
  const RankId rank{WorkerId(1), 2};
  {
    const Duration ms = std::chrono::milliseconds(1);
    RankPermit a(ledger, rank, {100, 1, 400, 3 * ms});
    RankPermit b(ledger, rank, {50, 1, 60, ms});
    const RankPermit other(ledger, {WorkerId(1), 0}, {1, 1, 1, ms});
    const RankPermit another(ledger, {WorkerId(2), 0}, {1, 1, 1, ms});
    CHECK(ledger.of(rank) == RankLedger::Entry{150, 2, 460, 4 * ms});
    CHECK(ledger.of({WorkerId(1), 1}) == RankLedger::Entry{});
    REQUIRE(ledger.of_worker(WorkerId(1)).size() == 2);
    CHECK(ledger.of_worker(WorkerId(1))[1].first == rank);
    CHECK(ledger.of_worker(WorkerId(3)).empty());
    a.prompt_done();
    a.prompt_done();
    CHECK(ledger.of(rank) == RankLedger::Entry{50, 2, 460, ms});
    RankPermit c = std::move(a);
    a = std::move(b);
    CHECK(ledger.of(rank) == RankLedger::Entry{50, 2, 460, ms});
    c.give_back();
    c.give_back();
    CHECK(ledger.of(rank) == RankLedger::Entry{50, 1, 60, ms});
  }
  CHECK(ledger.empty());
}

}  // namespace penstock::gateway
