#include "core/experts/record_plan.h"

#include <boost/json.hpp>

#include <doctest/doctest.h>

namespace penstock::experts {
namespace {

namespace json = boost::json;

// One layer after a dense one; expert 0 is hot, more so in the second half.
LoadRecord record() {
  LoadRecord out{"m", 1, 1, 8, {}};
  for (std::uint64_t w = 0; w < 20; ++w)
    out.windows.push_back({w, "a", 1, {w < 10 ? 500U : 700U, 560, 120, 120, 20, 10, 10, 10}});
  return out;
}

constexpr Shape kShape{.experts = 8, .gpus = 8, .slots_per_gpu = 2};

}  // namespace

TEST_CASE("a plan from a record beats the baseline and keeps to the floor") {
  const auto plan = plan_recorded_layer(record(), 0, kShape, PlanMethod::kSearch);
  REQUIRE(plan);
  CHECK(check(kShape, plan->placement, Copies::kDistinct));
  CHECK(plan->picks == 20 * (600 + 850));
  CHECK(plan->floor >= 1);
  CHECK(plan->planned >= plan->floor);
  CHECK(plan->planned < plan->baseline);
  CHECK(plan->baseline < plan->in_order);
  const auto baseline = plan_recorded_layer(record(), 0, kShape, PlanMethod::kBaseline);
  REQUIRE(baseline);
  CHECK(baseline->planned == baseline->baseline);
  const auto weighted = plan_recorded_layer(record(), 0, kShape, PlanMethod::kWeighted);
  REQUIRE(weighted);
  CHECK(weighted->shares.size() == 16);
  CHECK(weighted->planned <= plan->planned + 1e-9);
  CHECK(weighted->floor <= plan->floor);
  CHECK(!plan_recorded_layer(record(), 0, {.experts = 8, .gpus = 3, .slots_per_gpu = 2},
                             PlanMethod::kSearch));
}

TEST_CASE("a record without any load is planned, too") {
  LoadRecord idle = record();
  for (RecordedWindow& window : idle.windows)
    window.picks.assign(8, 0);
  const auto plan = plan_recorded_layer(idle, 0, kShape, PlanMethod::kSearch);
  REQUIRE(plan);
  CHECK(plan->planned == 1);
  CHECK(plan->floor == 1);
}

TEST_CASE("the files: maps that agree, and a row for every layer of the model for SGLang") {
  const std::vector<RecordedLayerPlan> layers = {
      *plan_recorded_layer(record(), 0, kShape, PlanMethod::kSearch)};
  const json::value maps = json::parse(print_maps(record(), kShape, layers));
  const auto& slots = maps.at("physical_to_logical_map").at(0).as_array();
  REQUIRE(slots.size() == 16);
  std::size_t named = 0;
  for (std::size_t e = 0; e < 8; ++e) {
    for (const json::value& slot : maps.at("logical_to_physical_map").at(0).at(e).as_array()) {
      if (slot.as_int64() < 0) continue;
      CHECK(slots[slot.to_number<std::size_t>()].to_number<std::size_t>() == e);
      ++named;
    }
  }
  CHECK(named == 16);
  CHECK(maps.at("gpus").as_int64() == 8);
  CHECK(!maps.as_object().contains("slot_shares"));
  const json::value sglang = json::parse(print_sglang_location(record(), kShape, layers));
  REQUIRE(sglang.as_object().size() == 1);  // the engine passes on every key that it finds
  const auto& rows = sglang.at("physical_to_logical_map").as_array();
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].at(9).as_int64() == 1);
  CHECK(rows[1] == json::value(slots));
}

}  // namespace penstock::experts
