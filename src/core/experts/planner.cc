#include "core/experts/planner.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace penstock::experts {

std::string_view to_string(LayerVerdict verdict) {
  switch (verdict) {
    case LayerVerdict::kBalanced:
      return "balanced";
    case LayerVerdict::kNoGain:
      return "no_gain";
    case LayerVerdict::kPlanned:
      return "planned";
    case LayerVerdict::kWaits:
      return "waits";
    case LayerVerdict::kNotReached:
      return "not_reached";
  }
  std::unreachable();
}

RoundPlanner::RoundPlanner(const Shape& shape, std::vector<Placement> current,
                           std::vector<LayerLoads> loads, const PlannerOptions& options)
    : shape_(shape),
      options_(options),
      current_(std::move(current)),
      loads_(std::move(loads)),
      plans_(loads_.size()) {
  options_.search.steps_max =
      shape.slots_per_gpu <= options.search_slots_per_gpu_max ? options.search_steps_max : 0;
}

Result<RoundPlanner> RoundPlanner::start(const Shape& shape, std::vector<Placement> current,
                                         std::vector<LayerLoads> loads,
                                         const PlannerOptions& options) {
  if (!current.empty() && current.size() != loads.size())
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("experts: placements of {} layers, loads of {}", current.size(), loads.size()));
  for (const Placement& placement : current)
    TRY_STATUS(check(shape, placement, Copies::kAny));
  for (const LayerLoads& layer : loads)
    TRY_STATUS(check_loads(shape, layer));
  return RoundPlanner(shape, std::move(current), std::move(loads), options);
}

double RoundPlanner::imbalance(const Placement& placement) const {
  return placement_cost(shape_, placement, loads_[layer_], options_.search.deviation_weight);
}

// Looks at the next layer; false when its present placement is kept as it is.
bool RoundPlanner::begin_layer() {
  LayerPlan& plan = plans_[layer_];
  const bool first = current_.empty();
  if (!first) {
    plan.placement = current_[layer_];
    plan.before = plan.after = imbalance(plan.placement);
    if (plan.before <= options_.balanced_below && doubled_copies(shape_, plan.placement) == 0) {
      plan.verdict = LayerVerdict::kBalanced;
      return false;
    }
  }
  auto search = LayerSearch::start(shape_, loads_[layer_], options_.search);
  ENSURE(search);  // loads and shape were checked at the start
  search_ = std::move(*search);
  return true;
}

bool RoundPlanner::step() {
  if (layer_ >= plans_.size()) return false;
  if (search_) {
    if (search_->step()) return true;
    end_search();
    return layer_ < plans_.size();
  }
  if (migration_) {
    if (migration_->step()) return true;
    Migration done = std::move(*migration_);
    migration_.reset();
    end_layer(done.placement(), done.moves());
    return layer_ < plans_.size();
  }
  if (!begin_layer()) ++layer_;
  return layer_ < plans_.size();
}

void RoundPlanner::end_search() {
  Placement found = search_->best();
  search_.reset();
  if (current_.empty()) {
    LayerPlan& plan = plans_[layer_];
    plan.placement = std::move(found);
    plan.before = plan.after = imbalance(plan.placement);
    plan.verdict = LayerVerdict::kPlanned;
    plan.moves = shape_.slots();
    ++layer_;
    return;
  }
  const Placement& present = current_[layer_];
  found = relabelled(shape_, present, found);
  const std::size_t moves = moved_copies(shape_, present, found);
  // Moves within a placement that doubles copies could keep it doubled.
  if (moves <= options_.layer_moves_max || doubled_copies(shape_, present) != 0)
    end_layer(std::move(found), moves);
  else
    migration_.emplace(shape_, present, loads_[layer_], options_.search.deviation_weight,
                       options_.layer_moves_max);
}

void RoundPlanner::end_layer(Placement placement, std::size_t moves) {
  LayerPlan& plan = plans_[layer_];
  const double after = imbalance(placement);
  const bool mends = doubled_copies(shape_, current_[layer_]) != 0;
  if (moves > 0 && (mends || after <= plan.before - options_.gain_min)) {
    plan.verdict = LayerVerdict::kPlanned;
    plan.placement = std::move(placement);
    plan.after = after;
    plan.moves = moves;
  } else {
    plan.verdict = LayerVerdict::kNoGain;
  }
  ++layer_;
}

RoundPlan RoundPlanner::finish() && {
  RoundPlan round{.layers = {}, .moves = 0, .complete = layer_ >= plans_.size()};
  for (std::size_t layer = layer_; layer < plans_.size(); ++layer) {
    LayerPlan& plan = plans_[layer];
    plan.verdict = LayerVerdict::kNotReached;
    if (!current_.empty())
      plan.placement = current_[layer];
    else
      plan.placement = first_placement(shape_);
  }
  std::vector<std::size_t> planned;
  for (std::size_t layer = 0; layer < plans_.size(); ++layer)
    if (plans_[layer].verdict == LayerVerdict::kPlanned) planned.push_back(layer);
  const auto value = [&](std::size_t layer) {
    const LayerPlan& plan = plans_[layer];
    return (plan.before - plan.after) / static_cast<double>(plan.moves);
  };
  std::ranges::sort(planned, [&](std::size_t a, std::size_t b) {
    return value(a) != value(b) ? value(a) > value(b) : a < b;
  });
  for (const std::size_t layer : planned) {
    LayerPlan& plan = plans_[layer];
    if (current_.empty() || round.moves + plan.moves <= options_.round_moves_max) {
      round.moves += plan.moves;
      continue;
    }
    plan.verdict = LayerVerdict::kWaits;
    plan.placement = current_[layer];
    plan.after = plan.before;
    plan.moves = 0;
  }
  round.layers = std::move(plans_);
  return round;
}

}  // namespace penstock::experts
