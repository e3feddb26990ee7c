#include "service/gateway/rank_table.h"

#include <string>
#include <utility>

#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock::gateway {
namespace {

constexpr std::uint32_t kWorkers = 7;

// What a client that counts revisions shows: everything that a worker does moves them.
struct Shard {
  std::vector<WorkerView> workers;
  RankLedger ledger;
  EngineCosts costs;
  std::vector<RankPermit> permits;
  Rng rng;

  explicit Shard(std::uint64_t seed) : rng(seed) {
    for (std::uint32_t i = 0; i < kWorkers; ++i) {
      workers.emplace_back().description.id = WorkerId(i + 1);
      workers.back().revision = 1;
      if (i != 3) say_hello(workers.back());
    }
  }

  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(rng.below(n)); }
  void report(WorkerView& worker) {
    for (EngineLoad& load : worker.loads) {
      load.running = below(5);
      load.waiting = below(3);
      load.kv_tokens_used = Tokens(below(1000));
      load.kv_tokens_total = Tokens(2000);
      load.prompt_tokens_waiting = below(500);
      load.prefill = below(2) == 0 ? PrefillCoefficients{} : PrefillCoefficients{0, 1e-3, 0};
    }
    ++worker.revision;
  }
  void say_hello(WorkerView& worker) {
    WorkerDescription& described = worker.description;
    described.epoch = Epoch(rng.next_u64());
    described.name = "w" + std::to_string(described.id.value);
    described.engine = below(2) == 0 ? "embedded 1" : "other 2";
    described.role = static_cast<WorkerRole>(below(3));
    described.zone = below(2) == 0 ? "west" : "";
    described.transport = below(4) == 0 ? "" : "shm:/" + described.name;
    described.step_group = below(2) == 0 ? "" : "g" + std::to_string(below(2));
    described.models.clear();
    const std::uint32_t models = 1 + below(2);
    for (std::uint32_t m = 0; m < models; ++m) {
      ModelDescription& model = described.models.emplace_back();
      model.name = m == 0 && below(6) > 0 ? "m" : "n" + std::to_string(m);
      model.kv.kv_format = below(3) == 0 ? "fp8" : "bf16";
      model.kv_token_bytes = 100 + below(2);
    }
    worker.connected = true;
    worker.draining = false;
    worker.loads.assign(1 + below(4), {});
    for (EngineLoad& load : worker.loads)
      load.model = below(models);
    report(worker);
  }

  void happen() {
    WorkerView& worker = workers[below(kWorkers)];
    switch (below(12)) {
      case 0:
        worker.connected = false;
        worker.draining = false;
        worker.loads.clear();
        ++worker.revision;
        return;
      case 1:
        return say_hello(worker);
      case 2:
        worker.draining = worker.connected && !worker.draining;
        ++worker.revision;
        return;
      case 3:
        costs.prompt_computed(worker, "m", Tokens(100 + below(400)),
                              std::chrono::milliseconds(1 + below(50)));
        return;
      case 4:
      case 5:
        if (!permits.empty()) permits.erase(permits.begin() + below(std::uint32_t(permits.size())));
        return;
      case 6:
        if (!permits.empty()) permits[below(std::uint32_t(permits.size()))].prompt_done();
        return;
      case 7:
      case 8:
        permits.emplace_back(
            ledger, RankId{worker.description.id, below(5)},
            RankLedger::Entry{below(300), 1, below(900), std::chrono::milliseconds(below(300)),
                              std::chrono::milliseconds(below(30))});
        return;
      default:
        return report(worker);
    }
  }
};

void check_equal(const RankTable::Pool& kept, const RankTable::Pool& fresh) {
  REQUIRE(kept.rows == fresh.rows);
  REQUIRE(kept.blocks == fresh.blocks);
  CHECK(kept.engines == fresh.engines);
  CHECK(kept.steps_together == fresh.steps_together);
  CHECK(kept.mixed == fresh.mixed);
  REQUIRE(kept.views.size() == fresh.views.size());
  for (std::size_t i = 0; i < kept.views.size(); ++i) {
    const routing::RankView& a = kept.views[i];
    const routing::RankView& b = fresh.views[i];
    const bool same = a.id == b.id && a.engine == b.engine && a.zone == b.zone &&
                      a.running == b.running && a.waiting == b.waiting &&
                      a.kv_tokens == b.kv_tokens && a.kv_capacity == b.kv_capacity &&
                      a.load_outstanding_seconds == b.load_outstanding_seconds;
    REQUIRE(same);
  }
}

}  // namespace

TEST_CASE("what is kept equals what is read anew, whatever has happened between two looks") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Shard shard(seed);
    RankTable kept;
    std::size_t rows = 0;
    for (int look = 0; look < 400; ++look) {
      CAPTURE(look);
      // Now and then more than the ledger remembers.
      const std::uint32_t events = shard.below(50) == 0 ? 1500 : shard.below(6);
      for (std::uint32_t i = 0; i < events; ++i)
        shard.happen();
      kept.refresh(shard.workers, shard.ledger, shard.costs, "m");
      RankTable fresh;
      fresh.refresh(shard.workers, shard.ledger, shard.costs, "m");
      check_equal(kept.prefill(), fresh.prefill());
      check_equal(kept.others(), fresh.others());
      CHECK(kept.draining() == fresh.draining());
      rows += kept.prefill().rows.size() + kept.others().rows.size();
    }
    CHECK(rows > 1000);
  }
}

TEST_CASE("only what has changed is read again, and all of it of who does not count") {
  Shard shard(1);
  WorkerView& worker = shard.workers[0];
  shard.workers.resize(1);
  worker.description.role = WorkerRole::kDecode;
  worker.description.models[0].name = "m";
  worker.loads.assign(2, {});
  RankTable table;
  const auto running = [&](std::uint32_t rank) {
    table.refresh(shard.workers, shard.ledger, shard.costs, "m");
    return table.others().views[rank].running;
  };
  CHECK(running(0) == 0);
  worker.loads[0].running = 3;
  CHECK(running(0) == 0);  // it has not said that something changed
  ++worker.revision;
  CHECK(running(0) == 3);
  worker.loads[1].running = 9;
  const RankPermit permit(shard.ledger, {WorkerId(1), 0}, {10, 5, 10, {}});
  CHECK(running(0) == 5);
  CHECK(running(1) == 0);
  worker.revision = 0;
  CHECK(running(1) == 9);
  worker.loads[1].running = 2;
  CHECK(running(1) == 2);
}

TEST_CASE("ranks that step together are one engine, across workers") {
  std::vector<WorkerView> workers(3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    WorkerView& worker = workers[i];
    worker.description.id = WorkerId(i + 1);
    worker.description.models.emplace_back().name = "m";
    worker.description.role = WorkerRole::kDecode;
    worker.description.step_group = i == 1 ? "" : "g";
    worker.connected = true;
    worker.loads.resize(2);
    for (EngineLoad& load : worker.loads)
      load.running = i + 1;
  }
  const RankLedger ledger;
  EngineCosts costs;
  RankTable table;
  table.refresh(workers, ledger, costs, "m");
  const RankTable::Pool& pool = table.others();
  CHECK(pool.engines == 3);
  CHECK(pool.steps_together);
  std::vector<std::uint32_t> engines;
  std::vector<std::uint32_t> running;
  for (const routing::RankView& view : pool.views) {
    engines.push_back(view.engine);
    running.push_back(pool.running_with(view));
  }
  CHECK((engines == std::vector<std::uint32_t>{0, 0, 1, 2, 0, 0}));
  CHECK((running == std::vector<std::uint32_t>{8, 8, 2, 2, 8, 8}));
}

}  // namespace penstock::gateway
