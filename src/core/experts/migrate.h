// Improves a placement that is in use with few moves of weights.
//
// Each step() makes the one change that takes most off the worst GPU per copy moved: swapping two
// experts between GPUs (two moves), or overwriting a spare copy by a copy of another expert (one
// move), on the worst GPU or elsewhere. Hierarchical shapes change within a node only.
//
// Invariants: the result is complete and distinct if the start was, and at most `moves_max` copies
// have moved; the cost of the worst GPU touched falls with every step.
// Precondition: the placement passes check(), and loads fit the shape.
// Cost of a step: O(slots * slots_per_gpu * copies). Concurrency: one thread.
#pragma once

#include <span>
#include <vector>

#include "core/experts/risk.h"
#include "core/experts/search.h"

namespace penstock::experts {

class Migration {
 public:
  Migration(const Shape& shape, Placement start, const LayerLoads& loads, double deviation_weight,
            std::size_t moves_max);

  // Makes one change; false when none helps or fits the moves left.
  bool step();
  const Placement& placement() const { return placement_; }
  std::size_t moves() const { return moves_; }

 private:
  struct Change;
  void consider_swaps(std::size_t worst, Change& best) const;
  void consider_copies(std::size_t slot, ExpertIndex arriving, Change& best) const;
  void make(const Change& change);
  void reload();
  bool holds(std::size_t gpu, ExpertIndex expert) const;
  std::size_t gpu_of(std::size_t slot) const { return slot / shape_.slots_per_gpu; }
  std::size_t node_of(std::size_t gpu) const { return gpu / node_gpus_; }

  Shape shape_;
  std::size_t node_gpus_;
  Placement placement_;
  std::vector<Risk> experts_;
  std::size_t moves_max_;
  std::size_t moves_ = 0;
  std::vector<std::uint32_t> counts_;
  std::vector<std::vector<std::size_t>> holders_;  // GPUs of each expert
  std::vector<Risk> loads_;                        // of GPUs
};

// The risk of each expert, deviations scaled by z; shared with the search.
std::vector<Risk> expert_risks(const LayerLoads& loads, double deviation_weight);

}  // namespace penstock::experts
