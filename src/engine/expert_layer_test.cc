#include "engine/expert_layer.h"

#include <functional>

#include "engine/engine.h"
#include "engine/testing/random_checkpoint.h"

#include <doctest/doctest.h>

namespace penstock::engine {
namespace {

// Two layers of four experts on three ranks with two slots.
ExpertMap good_map() {
  ExpertMap map;
  map.version = 1;
  map.layers = 2;
  map.experts = 4;
  map.ranks = 3;
  map.slots_per_rank = 2;
  map.slots = {0, 1, 2, 3, 0, 2, 3, 2, 1, 0, 0, 3};
  return map;
}

}  // namespace

TEST_CASE("without a map every expert is a rank") {
  ExpertLayer layer(3);
  CHECK(layer.take(2) == 2);
  CHECK(layer.take(0) == 0);
  CHECK(layer.take(2) == 2);
  const std::vector<std::uint32_t> starts = {0, 1, 1, 3};
  layer.count_pass(starts);
  CHECK(layer.picks == std::vector<std::uint64_t>{1, 0, 2});
  CHECK(layer.rank_picks == std::vector<std::uint64_t>{1, 0, 2});
  CHECK(layer.picks_all == 3);
  CHECK(layer.paced == 6);  // three ranks at the pace of the busiest
  layer.reset();
  CHECK(layer.picks_all == 0);
  CHECK(layer.picks == std::vector<std::uint64_t>(3));
}

TEST_CASE("rows of an expert are dealt to its copies in turn, over passes too") {
  ExpertLayer layer(4);
  const ExpertMap map = good_map();
  layer.place(std::span(map.slots).first(6), 3);
  CHECK(layer.take(0) == 0);
  CHECK(layer.take(0) == 4);
  CHECK(layer.take(2) == 2);
  CHECK(layer.take(1) == 1);
  const std::vector<std::uint32_t> first = {0, 1, 2, 3, 3, 4, 4};
  layer.count_pass(first);
  CHECK(layer.rank_picks == std::vector<std::uint64_t>{2, 1, 1});
  CHECK(layer.take(0) == 0);
  CHECK(layer.take(2) == 5);
  CHECK(layer.paced == 6);
}

TEST_CASE("impossible maps are refused with the reason") {
  const std::pair<const char*, std::function<void(ExpertMap&)>> wrong[] = {
      {"a map needs a version above 0", [](ExpertMap& m) { m.version = 0; }},
      {"the map is for 2 layers of 5 experts", [](ExpertMap& m) { m.experts = 5; }},
      {"the map is for 1 layers of 4 experts", [](ExpertMap& m) { m.layers = 1; }},
      {"11 slots for 2 layers", [](ExpertMap& m) { m.slots.pop_back(); }},
      {"slots for 2 layers of 0 ranks", [](ExpertMap& m) { m.ranks = 0; }},
      {"layer 1, slot 5: there is no expert 4 of 4", [](ExpertMap& m) { m.slots[11] = 4; }},
      {"layer 0: rank 2 has two copies of expert 2", [](ExpertMap& m) { m.slots[4] = 2; }},
      {"layer 1: expert 1 is nowhere", [](ExpertMap& m) { m.slots[8] = 3; }},
  };
  CHECK(check_expert_map(good_map(), 2, 4));
  CHECK(check_expert_map(good_map(), 0, 0).error().code == ErrorCode::kUnsupported);
  for (const auto& [reason, change] : wrong) {
    CAPTURE(reason);
    ExpertMap map = good_map();
    change(map);
    const Status status = check_expert_map(map, 2, 4);
    REQUIRE(!status);
    CHECK(status.error().code == ErrorCode::kInvalidArgument);
    CHECK(status.error().message.find(reason) != std::string::npos);
  }
}

TEST_CASE("an engine reports loads by logical rank; a refused map changes nothing") {
  const TemporaryFolder folder;
  CheckpointShape shape;
  shape.experts = 4;  // layers 1 and 2 have experts, two of which a token goes to
  REQUIRE(write_checkpoint(folder.path(), shape, 3));
  EngineOptions options;
  options.checkpoint_dir = folder.path();
  options.threads = 1;
  auto opened = Engine::open(options);
  REQUIRE(opened);
  Engine& engine = **opened;
  CHECK(engine.expert_use() == ExpertUse{0, 1, {0, 0}, {0, 0}});
  std::uint64_t last_id = 0;
  const auto run = [&](std::size_t tokens) {
    EngineRequest r;
    r.id = RequestId(++last_id);
    std::vector<TokenId> prompt;
    for (std::size_t i = 0; i < tokens; ++i)
      prompt.push_back(static_cast<TokenId>(7 * i % shape.vocab_size));
    r.prompt = std::make_shared<const std::vector<TokenId>>(std::move(prompt));
    r.sampling.max_tokens = 1;
    REQUIRE(engine.submit(std::move(r)));
    while (engine.has_work())
      engine.step();
  };
  run(50);
  CHECK(engine.expert_report().rank_picks.empty());
  REQUIRE(engine.set_expert_map(good_map()));
  run(60);
  const ExpertReport report = engine.expert_report();
  CHECK(report.map == good_map());
  REQUIRE(report.rank_picks.size() == 6);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    std::uint64_t picks = 0;
    std::uint64_t by_rank = 0;
    for (std::size_t e = 0; e < 4; ++e)
      picks += report.picks[layer * 4 + e];
    for (std::size_t r = 0; r < 3; ++r)
      by_rank += report.rank_picks[layer * 3 + r];
    CHECK(picks == 2 * 110);   // since the start
    CHECK(by_rank == 2 * 60);  // since the map
    CHECK(engine.expert_use().picks[layer] == picks);
    CHECK(engine.expert_use().paced[layer] >= picks);
  }
  ExpertMap bad = good_map();
  bad.version = 2;
  bad.slots[0] = 1;
  CHECK(!engine.set_expert_map(bad));
  CHECK(engine.expert_report() == report);

  shape.experts = 0;
  const TemporaryFolder dense_folder;
  REQUIRE(write_checkpoint(dense_folder.path(), shape, 3));
  options.checkpoint_dir = dense_folder.path();
  const auto dense = Engine::open(options);
  REQUIRE(dense);
  CHECK((*dense)->set_expert_map(good_map()).error().code == ErrorCode::kUnsupported);
  CHECK((*dense)->expert_use().picks.empty());
}

}  // namespace penstock::engine
