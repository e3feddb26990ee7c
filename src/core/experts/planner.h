// One round of re-planning all layers: which layers pay, what moves, and when to stop.
//
// For each layer: leave it when its present placement is good enough for the forecast; otherwise
// search (search.h), rename GPUs so that little moves, and take the result if the gain is worth it
// and its moves fit; if they don't, improve the present placement with the moves there are
// (migrate.h). At the end the layers that gain most per move share the round's moves; the others
// wait for the next round.
//
// The planner has no clock: step() is short, and its owner stops calling when its time is over.
// finish() may be called at any moment; layers not reached keep their placement and the plan says
// so, which is what a watchdog counts.
//
// Invariants: every placement handed out is complete and distinct (a present placement that is not,
// like the baseline's doubled copies, is always re-planned); moves are within both limits, except
// for a first placement, which has none before it. Units: imbalance is the worst GPU's cost over
// the mean load. Errors: as of LayerSearch; a layer that can't be planned fails the round at start.
// Concurrency: one thread. Source: design.md section 7; SwiftBalancer's limits on transfers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/experts/migrate.h"
#include "core/experts/search.h"

namespace penstock::experts {

struct PlannerOptions {
  SearchOptions search = {};
  double balanced_below = 1.01;  // imbalance at which a layer is left alone
  double gain_min = 0.005;       // of imbalance; less is not worth moving weights
  std::size_t layer_moves_max = 32;
  std::size_t round_moves_max = 1024;
  // Steps of count search per layer; with many slots per GPU packing is near perfect without.
  std::uint64_t search_steps_max = 300;
  std::size_t search_slots_per_gpu_max = 3;
};

enum class LayerVerdict : std::uint8_t {
  kBalanced,    // good enough as it is
  kNoGain,      // nothing found that is worth its moves
  kPlanned,     // a new placement
  kWaits,       // would gain, but the round's moves went to layers that gain more
  kNotReached,  // time was over
};
std::string_view to_string(LayerVerdict verdict);

struct LayerPlan {
  LayerVerdict verdict = LayerVerdict::kNotReached;
  Placement placement;  // to use from now on
  double before = 1;    // imbalance expected of the present placement
  double after = 1;     // of `placement`
  std::size_t moves = 0;
};

struct RoundPlan {
  std::vector<LayerPlan> layers;
  std::size_t moves = 0;
  bool complete = false;  // false: the watchdog ended it
};

class RoundPlanner {
 public:
  // `current` is one placement per layer, or empty for a first placement of all.
  static Result<RoundPlanner> start(const Shape& shape, std::vector<Placement> current,
                                    std::vector<LayerLoads> loads, const PlannerOptions& options);

  // Plans a little more; false when all layers are done.
  bool step();
  RoundPlan finish() &&;

 private:
  RoundPlanner(const Shape& shape, std::vector<Placement> current, std::vector<LayerLoads> loads,
               const PlannerOptions& options);
  bool begin_layer();
  void end_search();
  void end_layer(Placement placement, std::size_t moves);
  double imbalance(const Placement& placement) const;

  Shape shape_;
  PlannerOptions options_;
  std::vector<Placement> current_;
  std::vector<LayerLoads> loads_;
  std::vector<LayerPlan> plans_;
  std::size_t layer_ = 0;
  std::optional<LayerSearch> search_;
  std::optional<Migration> migration_;
};

}  // namespace penstock::experts
