#include "core/experts/live_planner.h"

#include <algorithm>

#include <fmt/format.h>

namespace penstock::experts {

Shape shape_for(const LivePlannerOptions& options, std::size_t experts) {
  const std::size_t ranks = std::max<std::size_t>(options.ranks, 1);
  const std::size_t slots =
      options.slots_per_rank > 0 ? options.slots_per_rank : (experts + ranks - 1) / ranks + 1;
  return {.experts = experts,
          .gpus = options.ranks,
          .slots_per_gpu = std::min(slots, experts),
          .groups = options.groups,
          .nodes = options.nodes};
}

void LivePlanner::restart(const ExpertReport& first) {
  shape_ = shape_for(options_, first.experts);
  layers_ = first.layers;
  windows_.assign(layers_, LoadWindow(first.experts));
  last_.clear();
  placements_.clear();
}

Status LivePlanner::observe(Epoch worker, std::span<const ExpertReport> ranks) {
  held_.clear();
  if (ranks.empty() || ranks[0].layers == 0)
    return fail(ErrorCode::kInvalidArgument, "experts: no rank with routed experts");
  for (const ExpertReport& rank : ranks) {
    if (rank.layers != ranks[0].layers || rank.experts != ranks[0].experts)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("experts: ranks with {} and {} layers of {} and {} experts",
                              ranks[0].layers, rank.layers, ranks[0].experts, rank.experts));
  }
  TRY_STATUS(check(shape_for(options_, ranks[0].experts)));
  if (ranks[0].layers != layers_ || ranks[0].experts != shape_.experts) restart(ranks[0]);
  count(worker, ranks);
  look_at_maps(ranks);
  return {};
}

void LivePlanner::count(Epoch worker, std::span<const ExpertReport> ranks) {
  const auto grew = [&](std::size_t rank) {
    const auto& now = ranks[rank].picks;
    return std::ranges::equal(last_[rank], now,
                              [](auto before, auto after) { return before <= after; });
  };
  bool goes_on = worker == worker_ && last_.size() == ranks.size();
  for (std::size_t rank = 0; goes_on && rank < ranks.size(); ++rank)
    goes_on = grew(rank);
  if (goes_on) {
    std::vector<double> window(shape_.experts);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      std::ranges::fill(window, 0.0);
      double total = 0;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        for (std::size_t e = 0; e < window.size(); ++e) {
          const std::size_t at = layer * shape_.experts + e;
          window[e] += static_cast<double>(ranks[rank].picks[at] - last_[rank][at]);
        }
      }
      for (const double load : window)
        total += load;
      // A window without load says nothing, and must not push out those that do.
      if (total > 0) static_cast<void>(windows_[layer].push(window));
    }
  }
  worker_ = worker;
  last_.clear();
  for (const ExpertReport& rank : ranks)
    last_.push_back(rank.picks);
}

void LivePlanner::look_at_maps(std::span<const ExpertReport> ranks) {
  const ExpertMap* foreign = nullptr;
  for (const ExpertReport& rank : ranks) {
    const Name held{rank.map.version, rank.map.planner};
    held_.push_back(held);
    if (held.version == 0 || held.planner == options_.planner || held == use_) continue;
    if (foreign == nullptr || foreign->version < held.version) foreign = &rank.map;
  }
  if (foreign == nullptr) {
    foreign_ = {};
    quiet_ = 0;
    return;
  }
  const Name name{foreign->version, foreign->planner};
  quiet_ = name == foreign_ ? quiet_ + 1 : 0;
  foreign_ = name;
  if (quiet_ >= kQuietRounds) adopt(*foreign);
}

void LivePlanner::adopt(const ExpertMap& map) {
  use_ = {map.version, map.planner};
  foreign_ = {};
  placements_.clear();
  if (map.ranks != shape_.gpus || map.slots_per_rank != shape_.slots_per_gpu) return;
  for (std::size_t layer = 0; layer < layers_; ++layer) {
    const auto begin = map.slots.begin() + static_cast<std::ptrdiff_t>(layer * map.layer_slots());
    placements_.push_back({{begin, begin + static_cast<std::ptrdiff_t>(map.layer_slots())}});
    if (check(shape_, placements_.back(), Copies::kAny)) continue;
    placements_.clear();  // for other groups or nodes
    return;
  }
}

Result<std::optional<RoundPlanner>> LivePlanner::begin() const {
  const auto loaded = [](const LoadWindow& window) { return window.windows() > 0; };
  if (stands_back() || !std::ranges::any_of(windows_, loaded)) return std::nullopt;
  std::vector<LayerLoads> loads;
  for (const LoadWindow& window : windows_)
    loads.push_back(window.forecast());
  TRY(auto round, RoundPlanner::start(shape_, placements_, std::move(loads), options_.rounds));
  return std::optional<RoundPlanner>(std::move(round));
}

bool LivePlanner::take(RoundPlan plan) {
  const auto planned = [](const LayerPlan& layer) {
    return layer.verdict == LayerVerdict::kPlanned;
  };
  if (!placements_.empty() && std::ranges::none_of(plan.layers, planned)) return false;
  placements_.clear();
  for (LayerPlan& layer : plan.layers)
    placements_.push_back(std::move(layer.placement));
  for (const Name& held : held_)
    use_.version = std::max(use_.version, held.version);
  use_ = {use_.version + 1, options_.planner};
  return true;
}

std::optional<ExpertMap> LivePlanner::map_for(std::size_t rank) const {
  if (stands_back() || placements_.empty() || rank >= held_.size() || held_[rank] == use_)
    return std::nullopt;
  if (held_[rank].version >= use_.version) return std::nullopt;  // the next plan goes beyond it
  ExpertMap map;
  map.version = use_.version;
  map.replaces = held_[rank].version;
  map.worker = worker_;
  map.planner = use_.planner;
  map.layers = layers_;
  map.experts = static_cast<std::uint32_t>(shape_.experts);
  map.ranks = static_cast<std::uint32_t>(shape_.gpus);
  map.slots_per_rank = static_cast<std::uint32_t>(shape_.slots_per_gpu);
  for (const Placement& placement : placements_)
    map.slots.insert(map.slots.end(), placement.slots.begin(), placement.slots.end());
  return map;
}

}  // namespace penstock::experts
