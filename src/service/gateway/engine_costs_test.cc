#include "service/gateway/engine_costs.h"

#include <doctest/doctest.h>

namespace penstock::gateway {
namespace {

using routing::CostLaw;
using std::chrono::milliseconds;

WorkerView worker(std::uint64_t id, std::string engine = "embedded 0.1.0") {
  WorkerView view;
  view.description.id = WorkerId(id);
  view.description.epoch = Epoch(id);
  view.description.engine = std::move(engine);
  view.description.models.emplace_back().name = "m";
  view.loads.resize(1);
  view.connected = true;
  return view;
}

}  // namespace

TEST_CASE("steps are learned from what load frames count") {
  EngineCosts costs;
  std::vector<WorkerView> workers = {worker(1)};
  // 2 ms + 0.5 ms a request + 1 us a token of KV.
  std::uint64_t step = 0;
  Instant now{};
  for (int i = 0; i < 300; ++i) {
    EngineLoad& load = workers[0].loads[0];
    load.running = static_cast<std::uint32_t>(1 + i / 2 % 8);
    load.kv_tokens_used = Tokens((1 + i * 7 % 5) * 1000);
    const auto took = std::chrono::microseconds(2000 + 500 * static_cast<int>(load.running) +
                                                load.kv_tokens_used.value);
    step += 3;
    now += 3 * took;
    load.step = step;
    workers[0].heard_at = now;
    costs.watch(workers);
    costs.watch(workers);  // nothing new: nothing learned
  }
  REQUIRE(costs.types().size() == 1);
  const routing::CostModels& learned = costs.types()[0].costs;
  CHECK(routing::to_seconds(learned.step(4, Tokens(3000))) == doctest::Approx(0.007).epsilon(0.05));
  CHECK(learned.error(CostLaw::kStep).observations == 150);
  CHECK(learned.error(CostLaw::kStep).absolute < 0.25);  // the first ones were off
}

TEST_CASE("steps that compute prompts, of another run, or of who has gone teach nothing") {
  EngineCosts costs;
  std::vector<WorkerView> workers = {worker(1)};
  const auto look = [&](std::uint64_t step, std::uint64_t prompts, std::uint32_t running) {
    workers[0].loads[0].step = step;
    workers[0].loads[0].prompt_tokens_waiting = prompts;
    workers[0].loads[0].running = running;
    workers[0].heard_at += milliseconds(50);
    costs.watch(workers);
  };
  look(10, 0, 1);
  look(20, 300, 1);
  look(30, 0, 1);
  look(40, 0, 2);  // another batch in between
  look(50, 0, 0);
  look(60, 0, 2);
  workers[0].description.epoch = Epoch(9);
  look(70, 0, 2);
  CHECK(costs.types().empty());
  workers[0].connected = false;
  costs.watch(workers);
  workers[0].connected = true;
  look(80, 0, 2);
  CHECK(costs.types().empty());
  look(90, 0, 2);
  REQUIRE(costs.types().size() == 1);
  CHECK(costs.types()[0].costs.error(CostLaw::kStep).observations == 1);
}

TEST_CASE("prompts are learned by engine and model, and seeded from the engine's profile") {
  routing::CostSeeds slow;
  slow.prefill = {0, 1e-3, 0};
  EngineCosts costs({{"embedded", slow}});
  const auto seconds = [&](std::string_view engine, std::string_view model) {
    return routing::to_seconds(costs.of(engine, model).prefill(Tokens(1000), Tokens(0)));
  };
  CHECK(seconds("embedded 0.1.0", "m") == doctest::Approx(1));
  CHECK(seconds("other 2", "m") < 0.2);
  const WorkerView view = worker(1);
  for (int i = 0; i < 200; ++i)
    costs.prompt_computed(view, "m", Tokens(100 + i * 37 % 900),
                          milliseconds(100 + i * 37 % 900) / 5);
  CHECK(seconds("embedded 0.1.0", "m") == doctest::Approx(0.2).epsilon(0.05));
  CHECK(seconds("embedded 0.1.0", "n") == doctest::Approx(1));
  for (int i = 0; i < 1000; ++i)
    static_cast<void>(costs.of("engine-" + std::to_string(i), "m"));
  CHECK(costs.types().size() == EngineCosts::kTypesMax);
}

TEST_CASE("loads are learned by tier, from what a hit's first token took beyond the rest") {
  EngineCosts costs;
  WorkerView view = worker(1);
  view.description.models[0].kv_token_bytes = 1000;
  for (int i = 0; i < 300; ++i) {
    const int tokens = 1000 + i * 37 % 5000;
    const auto rest = costs.of("embedded 0.1.0", "m").prefill(Tokens(64), Tokens(tokens));
    // 2 ms and 100 MB/s.
    costs.prefix_loaded(view, "m", Tokens(tokens), KvTier::kDisk, Tokens(64),
                        rest + milliseconds(2) + std::chrono::microseconds(10 * tokens));
  }
  const routing::CostModels& learned = costs.of("embedded 0.1.0", "m");
  CHECK(routing::to_seconds(learned.load(Bytes(3'000'000), KvTier::kDisk)) ==
        doctest::Approx(0.032).epsilon(0.05));
  CHECK(routing::to_seconds(learned.load(Bytes(3'000'000), KvTier::kHost)) < 0.001);
  // One that is hidden behind the computation costs next to nothing.
  for (int i = 0; i < 300; ++i)
    costs.prefix_loaded(view, "m", Tokens(3000), KvTier::kHost, Tokens(64), Duration(1));
  CHECK(routing::to_seconds(learned.load(Bytes(3'000'000), KvTier::kHost)) < 50e-6);
}

TEST_CASE("steps of ranks that step together are learned from the slowest of them") {
  EngineCosts costs;
  std::vector<WorkerView> workers = {worker(1), worker(2)};
  for (WorkerView& w : workers)
    w.description.step_group = "g";
  Instant now{};
  std::uint64_t step = 0;
  // 2 ms + 0.5 ms a request of the rank that has most; the other one does half as much.
  for (int i = 0; i < 400; ++i) {
    const auto most = static_cast<std::uint32_t>(2 + 2 * (i / 4 % 5));
    workers[i / 20 % 2].loads[0].running = most;
    workers[1 - i / 20 % 2].loads[0].running = most / 2;
    step += 10;
    now += 10 * std::chrono::microseconds(2000 + 500 * static_cast<int>(most));
    for (WorkerView& w : workers) {
      w.loads[0].step = step;
      w.heard_at = now;
    }
    costs.watch(workers);
  }
  REQUIRE(costs.types().size() == 1);
  const routing::CostModels& learned = costs.types()[0].costs;
  CHECK(routing::to_seconds(learned.step(10, Tokens(0))) == doctest::Approx(0.007).epsilon(0.05));
  CHECK(learned.error(CostLaw::kStep).observations == 300);
  // Nothing is learned while one of them computes prompts.
  for (int i = 0; i < 10; ++i) {
    workers[1].loads[0].prompt_tokens_waiting = 100;
    workers[0].loads[0].step += 10;
    workers[0].heard_at += std::chrono::seconds(1);
    costs.watch(workers);
  }
  CHECK(learned.error(CostLaw::kStep).observations == 300);
}

TEST_CASE("how unevenly experts are loaded is measured, and taken out of a group's steps") {
  routing::CostSeeds seeds;
  seeds.step = {0.002, 0.0005, 0};
  seeds.decode_moe.mean = 1.1;
  EngineCosts costs({{"embedded", seeds}});
  std::vector<WorkerView> workers = {worker(1), worker(2)};
  for (WorkerView& w : workers) {
    w.description.step_group = "g";
    w.experts = {ExpertUse{0, 1, {100, 100}, {400, 400}}};  // no map: every expert is a rank
  }
  costs.watch(workers);
  const auto& known = costs.of(workers[0].description.engine, "m");
  CHECK(!costs.experts().of({WorkerId(1), 0}));
  CHECK(costs.decode_moe(workers[0].description, known) == doctest::Approx(1.1));
  // Under a map the first one's passes wait 1.2 times the mean, the other one's 1.6 times.
  Instant now{};
  std::uint64_t step = 0;
  for (int i = 0; i < 200; ++i) {
    const auto running = static_cast<std::uint32_t>(2 + 2 * (i / 4 % 5));
    step += 10;
    now += 10 * std::chrono::microseconds(static_cast<int>(1.4 * (2000 + 500 * running)));
    for (std::size_t w = 0; w < 2; ++w) {
      ExpertUse& use = workers[w].experts[0];
      use.map_version = 1;
      for (std::size_t layer = 0; layer < 2; ++layer) {
        use.picks[layer] += 1000;
        use.paced[layer] += w == 0 ? 1200 : 1600;
      }
      workers[w].loads[0].running = running;
      workers[w].loads[0].step = step;
      workers[w].heard_at = now;
    }
    costs.watch(workers);
  }
  CHECK(costs.experts().of({WorkerId(1), 0}) == doctest::Approx(1.2));
  CHECK(costs.experts().of({WorkerId(2), 0}) == doctest::Approx(1.6));
  CHECK(costs.decode_moe(workers[0].description, known) == doctest::Approx(1.4));
  CHECK(routing::to_seconds(known.step(10, Tokens(0))) == doctest::Approx(0.007).epsilon(0.03));
  // A better map shows at once; a new run says nothing yet; nobody is left.
  workers[1].experts[0].map_version = 2;
  costs.watch(workers);
  CHECK(!costs.experts().of({WorkerId(2), 0}));
  CHECK(costs.decode_moe(workers[0].description, known) == doctest::Approx(1.2));
  workers[0].description.epoch = Epoch(77);
  costs.watch(workers);
  CHECK(!costs.experts().of_group("g"));
  CHECK(costs.decode_moe(workers[0].description, known) == doctest::Approx(1.1));
  // Ranks that step by themselves are predicted as before, whatever their experts do.
  workers[0].description.step_group.clear();
  CHECK(costs.decode_moe(workers[0].description, known) == doctest::Approx(1.1));
}

TEST_CASE("an answer is expected to be like the last ones, and never longer than allowed") {
  EngineCosts costs;
  CHECK(costs.expected_answer(100) == 100);
  CHECK(costs.expected_answer(0) == 256);
  for (int i = 0; i < 500; ++i)
    costs.answer_ended(20);
  CHECK(costs.expected_answer(0) == 20);
  CHECK(costs.expected_answer(8192) == 20);
  for (int i = 0; i < 500; ++i)
    costs.answer_ended(0);
  CHECK(costs.expected_answer(0) == 1);
}

}  // namespace penstock::gateway
