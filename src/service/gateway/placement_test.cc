#include "service/gateway/placement.h"

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

  Placement at(std::uint32_t tokens, std::uint32_t cached = 0) {
    auto placed = place(workers, ledger, {"m", tokens, cached}, limits);
    REQUIRE(placed);
    CHECK(!placed->reason.empty());
    return *placed;
  }
};

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
  const RankPermit permit(plan.ledger, {WorkerId(2), 0}, {1000, 1});
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
  Placement placed = plan.at(4000, 3950);  // 5 ms of work
  CHECK_FALSE(placed.prefill);
  CHECK(placed.decode.worker == WorkerId(3));
  CHECK(placed.fresh == 50);
  CHECK(placed.reason.find("its prompt too, 50 tokens in 5.0 ms") != std::string::npos);
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
  plan = Plan();
  plan.workers[2].connected = false;
  plan.workers[3].draining = true;
  placed = plan.at(2000);
  CHECK_FALSE(placed.prefill);
  CHECK(placed.decode.worker == WorkerId(1));
  plan.workers[0].connected = plan.workers[1].connected = false;
  const auto none = place(plan.workers, plan.ledger, {"m", 10, 0}, plan.limits);
  REQUIRE(!none);
  CHECK(none.error().code == ErrorCode::kUnavailable);
  CHECK(none.error().message.find("draining: 1") != std::string::npos);
  CHECK_FALSE(is_served(plan.workers, "m"));
  CHECK_FALSE(place(Plan().workers, plan.ledger, {"other", 10, 0}, plan.limits));
}

TEST_CASE("mixed workers do both") {
  Plan plan;
  plan.workers = {worker(1, "m0", WorkerRole::kMixed), worker(2, "m1", WorkerRole::kMixed)};
  plan.workers[0].loads[0].waiting = 1;
  const Placement placed = plan.at(2000);
  CHECK_FALSE(placed.prefill);
  CHECK(placed.decode.worker == WorkerId(2));
}

TEST_CASE("a ledger is empty when its permits are gone") {
  RankLedger ledger;
  const RankId rank{WorkerId(1), 2};
  {
    RankPermit a(ledger, rank, {100, 1});
    RankPermit b(ledger, rank, {50, 1});
    CHECK(ledger.of(rank) == RankLedger::Entry{150, 2});
    a.prompt_done();
    a.prompt_done();
    CHECK(ledger.of(rank) == RankLedger::Entry{50, 2});
    RankPermit c = std::move(a);
    a = std::move(b);
    CHECK(ledger.of(rank) == RankLedger::Entry{50, 2});
    c.give_back();
    c.give_back();
    CHECK(ledger.of(rank) == RankLedger::Entry{50, 1});
  }
  CHECK(ledger.empty());
}

}  // namespace penstock::gateway
