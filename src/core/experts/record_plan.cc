#include "core/experts/record_plan.h"

#include <algorithm>
#include <boost/json.hpp>
#include <numeric>

#include "core/experts/baseline.h"
#include "core/experts/load_window.h"
#include "core/experts/weighted_split.h"

namespace penstock::experts {
namespace {

namespace json = boost::json;

// Equal weight for all parts: a record is not about its last minute.
constexpr double kHalfLife = 1e6;

Result<LayerLoads> expected(const std::vector<std::vector<double>>& windows, std::size_t experts) {
  const std::size_t parts = std::min(windows.size(), kWindowsMax + 1);
  LoadWindow window(experts, kHalfLife);
  for (std::size_t part = 0; part < parts; ++part) {
    std::vector<double> sum(experts);
    for (std::size_t w = windows.size() * part / parts; w < windows.size() * (part + 1) / parts;
         ++w)
      for (std::size_t e = 0; e < experts; ++e)
        sum[e] += windows[w][e];
    TRY_STATUS(window.push(sum));
  }
  return window.forecast();
}

json::object head(const LoadRecord& record, const Shape& shape) {
  return {{"schema", "penstock-expert-map/1"},
          {"model", record.model},
          {"first_layer", record.first_layer},
          {"layers", record.layers},
          {"experts", shape.experts},
          {"gpus", shape.gpus},
          {"slots_per_gpu", shape.slots_per_gpu}};
}

}  // namespace

Result<RecordedLayerPlan> plan_recorded_layer(const LoadRecord& record, std::uint32_t layer,
                                              const Shape& shape, PlanMethod method) {
  TRY_STATUS(check(shape));
  const auto windows = windows_of_layer(record, layer);
  TRY(const LayerLoads loads, expected(windows, shape.experts));
  std::vector<double> total(shape.experts);
  for (const auto& window : windows)
    for (std::size_t e = 0; e < shape.experts; ++e)
      total[e] += window[e];
  RecordedLayerPlan plan;
  plan.picks = std::accumulate(total.begin(), total.end(), 0.0);
  const double mean = plan.picks / static_cast<double>(shape.gpus);
  TRY(const Placement baseline, plan_baseline(shape, total));
  plan.in_order = max_over_mean(shape, first_placement(shape), total);
  plan.baseline = max_over_mean(shape, baseline, total);
  if (method == PlanMethod::kWeighted) {
    TRY(WeightedPlan weighted, plan_weighted(shape, total));
    plan.placement = std::move(weighted.placement);
    plan.shares = std::move(weighted.split.shares);
    plan.planned = max_over_mean(weighted.split.gpus);
    plan.floor = mean > 0 ? weighted_floor(shape, total) / mean : 1;
    return plan;
  }
  if (method == PlanMethod::kBaseline) {
    plan.placement = baseline;
  } else {
    TRY(plan.placement, plan_layer(shape, loads, {}));
  }
  plan.planned = max_over_mean(shape, plan.placement, total);
  plan.floor = mean > 0 ? equal_floor(shape, total) / mean : 1;
  return plan;
}

std::string print_maps(const LoadRecord& record, const Shape& shape,
                       std::span<const RecordedLayerPlan> layers) {
  json::array physical;
  json::array logical;
  json::array counts;
  json::array shares;
  for (const RecordedLayerPlan& layer : layers) {
    physical.emplace_back(json::array(layer.placement.slots.begin(), layer.placement.slots.end()));
    const auto copies = replica_counts(layer.placement, shape.experts);
    counts.emplace_back(json::array(copies.begin(), copies.end()));
    const LogicalMap map = logical_to_physical(layer.placement, shape.experts);
    json::array rows;
    for (std::size_t e = 0; e < shape.experts; ++e) {
      const auto begin = map.slots.begin() + static_cast<std::ptrdiff_t>(e * map.copies_max);
      rows.emplace_back(json::array(begin, begin + static_cast<std::ptrdiff_t>(map.copies_max)));
    }
    logical.emplace_back(std::move(rows));
    if (!layer.shares.empty())
      shares.emplace_back(json::array(layer.shares.begin(), layer.shares.end()));
  }
  json::object out = head(record, shape);
  out["physical_to_logical_map"] = std::move(physical);
  out["logical_to_physical_map"] = std::move(logical);
  out["logical_replica_count"] = std::move(counts);
  if (!shares.empty()) out["slot_shares"] = std::move(shares);
  return json::serialize(out);
}

std::string print_sglang_location(const LoadRecord& record, const Shape& shape,
                                  std::span<const RecordedLayerPlan> layers) {
  json::array rows;
  for (std::uint32_t dense = 0; dense < record.first_layer; ++dense) {
    json::array row;
    for (std::size_t slot = 0; slot < shape.slots(); ++slot)
      row.emplace_back(slot % shape.experts);
    rows.emplace_back(std::move(row));
  }
  for (const RecordedLayerPlan& layer : layers)
    rows.emplace_back(json::array(layer.placement.slots.begin(), layer.placement.slots.end()));
  return json::serialize(json::object{{"physical_to_logical_map", std::move(rows)}});
}

}  // namespace penstock::experts
