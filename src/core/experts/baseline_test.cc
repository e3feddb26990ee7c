#include "core/experts/baseline.h"

#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include <doctest/doctest.h>

namespace penstock::experts {
namespace {

namespace json = boost::json;

// The vectors lie beside the checkout, or where PENSTOCK_SHARED says.
json::value vectors() {
  const char* shared = std::getenv("PENSTOCK_SHARED");
  std::ifstream file((shared != nullptr ? std::string(shared) : std::string("../shared")) +
                     "/vectors/expert_placement_baseline.json");
  if (!file.good()) return nullptr;
  return json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
}

TEST_CASE("equal to the public algorithm, slot for slot") {
  const json::value all = vectors();
  if (all.is_null()) {
    MESSAGE("skipped: shared/vectors is not there (set PENSTOCK_SHARED)");
    return;
  }
  std::size_t layers = 0;
  for (const json::value& item : all.as_array()) {
    const json::object& c = item.as_object();
    const std::string name(c.at("name").as_string());
    CAPTURE(name);
    const auto number = [&](const char* key) { return c.at(key).to_number<std::size_t>(); };
    const json::array& weights = c.at("weight").as_array();
    for (std::size_t layer = 0; layer < weights.size(); ++layer) {
      const auto loads = json::value_to<std::vector<double>>(weights[layer]);
      const Shape shape{.experts = loads.size(),
                        .gpus = number("num_gpus"),
                        .slots_per_gpu = number("num_replicas") / number("num_gpus"),
                        .groups = number("num_groups"),
                        .nodes = number("num_nodes")};
      const auto placement = plan_baseline(shape, loads);
      REQUIRE(placement);
      CHECK(placement->slots == json::value_to<std::vector<ExpertIndex>>(
                                    c.at("physical_to_logical").as_array()[layer]));
      CHECK(replica_counts(*placement, loads.size()) ==
            json::value_to<std::vector<std::uint32_t>>(c.at("replica_count").as_array()[layer]));
      CHECK(max_over_mean(shape, *placement, loads) ==
            doctest::Approx(c.at("max_over_mean").as_array()[layer].to_number<double>())
                .epsilon(1e-5));
      ++layers;
    }
  }
  CHECK(layers >= 10);
}

TEST_CASE("bad loads are refused") {
  const Shape shape{.experts = 2, .gpus = 2, .slots_per_gpu = 1};
  CHECK(plan_baseline(shape, std::vector<double>{1, 2}));
  CHECK(!plan_baseline(shape, std::vector<double>{1}));
  CHECK(!plan_baseline(shape, std::vector<double>{1, -2}));
  CHECK(!plan_baseline(shape, std::vector<double>{1, std::nan("")}));
  CHECK(!plan_baseline({}, {}));
}

}  // namespace
}  // namespace penstock::experts
