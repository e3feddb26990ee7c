// Packs the copies of one node's experts onto its GPUs, for given copy counts.
//
// Internal to the search. Heaviest copies first, each onto the GPU with room and without that
// expert where the cost after is least; then swaps between the worst GPU and the lightest ones
// while the worse of the two gets better.
//
// Invariants: every GPU gets exactly its slots, no GPU two copies of an expert.
// Preconditions: counts are in [1, gpus] and add up to all slots.
// Cost: O(slots * gpus). Concurrency: one thread; scratch memory is reused.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/experts/placement.h"
#include "core/experts/risk.h"

namespace penstock::experts {

struct Packing {
  std::vector<ExpertIndex> slots;  // [gpus, slots_per_gpu], experts by index within the node
  float peak = 0;                  // cost of the worst GPU
  float spread = 0;                // sum over GPUs of (cost / mean)^16: tells equal peaks apart
};

class Packer {
 public:
  Packer(std::size_t gpus, std::size_t slots_per_gpu, std::vector<Risk> experts);

  enum class Refine : std::uint8_t { kNo, kYes };
  void pack(std::span<const std::uint32_t> counts, Refine refine, Packing& out);

  std::size_t gpus() const { return gpus_; }
  std::size_t slots() const { return gpus_ * slots_per_gpu_; }
  const std::vector<Risk>& experts() const { return experts_; }
  float mean() const { return mean_; }  // load of a GPU

 private:
  std::size_t choose(ExpertIndex expert, const Risk& copy) const;
  void deal(std::span<const std::uint32_t> counts, Packing& out);
  void refine(Packing& out);
  bool swap_off(std::size_t worst, Packing& out);
  bool holds(const Packing& packing, std::size_t gpu, ExpertIndex expert) const;
  void judge(Packing& out) const;

  std::size_t gpus_;
  std::size_t slots_per_gpu_;
  std::vector<Risk> experts_;
  bool has_lanes_ = false;
  float mean_ = 0;
  // Scratch of one pack().
  std::vector<ExpertIndex> order_;
  std::vector<Risk> copy_;     // of each expert, at its count
  std::vector<float> weight_;  // its cost
  std::vector<Risk> loads_;    // of GPUs
  std::vector<float> costs_;
  std::vector<std::uint32_t> filled_;
  std::vector<ExpertIndex> last_;  // put there last; copies of an expert come one after another
  std::vector<std::size_t> light_;
};

}  // namespace penstock::experts
