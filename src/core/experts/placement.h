// Where the experts of one layer live: slots of GPUs, each holding one copy of one expert.
//
// slots[g * slots_per_gpu + s] is the logical expert in slot s of GPU g ("physical to logical"); an
// expert with several copies has its tokens split over them, equally unless shares are given
// (weighted_split.h).
//
// Units and shapes: loads are tokens per window, or any unit that adds up; one per logical expert.
// Invariants: check() says whether a placement is complete (each expert has a copy) and distinct
// (no GPU holds two copies of one expert). Concurrency: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace penstock::experts {

using ExpertIndex = std::uint16_t;

struct Shape {
  std::size_t experts = 0;
  std::size_t gpus = 0;
  std::size_t slots_per_gpu = 0;
  std::size_t groups = 1;  // of experts that are routed together (hierarchical placement)
  std::size_t nodes = 1;   // hosts; GPUs [n * gpus / nodes, ...) are of node n

  std::size_t slots() const { return gpus * slots_per_gpu; }
  // Whole groups stay on one node when they can be divided so.
  bool hierarchical() const { return nodes > 1 && groups % nodes == 0; }
  bool operator==(const Shape&) const = default;
};

// kInvalidArgument unless every expert gets a slot, numbers divide, and limits hold
// (kExpertsMax experts, kSlotsMax slots).
inline constexpr std::size_t kExpertsMax = 4096;
inline constexpr std::size_t kSlotsMax = 65'536;
Status check(const Shape& shape);

struct Placement {
  std::vector<ExpertIndex> slots;

  bool operator==(const Placement&) const = default;
};

// Copies per expert.
std::vector<std::uint32_t> replica_counts(const Placement& placement, std::size_t experts);
// Load per GPU when each expert's load is split equally over its copies.
std::vector<double> gpu_loads(const Shape& shape, const Placement& placement,
                              std::span<const double> loads);
// The most loaded GPU over the mean; 1 without any load.
double max_over_mean(std::span<const double> gpu_loads);
double max_over_mean(const Shape& shape, const Placement& placement, std::span<const double> loads);
// GPUs that hold more than one copy of an expert: such copies do nothing.
std::size_t doubled_copies(const Shape& shape, const Placement& placement);
// Copies whose weights a GPU must fetch to go from one placement to the other.
std::size_t moved_copies(const Shape& shape, const Placement& from, const Placement& to);
// Complete, of the right size, experts in range, groups on their nodes when hierarchical; doubled
// copies are an error only with kDistinct.
enum class Copies : std::uint8_t { kAny, kDistinct };
Status check(const Shape& shape, const Placement& placement, Copies copies);

// Experts in order, spare slots filled by further rounds: distinct whenever that is possible.
// Precondition: check(shape).
Placement first_placement(const Shape& shape);

// Renames GPUs within each node, and orders slots, so that as little as possible moves from
// `current`; loads per GPU stay the same set.
Placement relabelled(const Shape& shape, const Placement& current, const Placement& wanted);

// The logical-to-physical table that engines take: [experts][copies_max], padded with -1, copies by
// slot number.
struct LogicalMap {
  std::size_t copies_max = 0;
  std::vector<std::int32_t> slots;  // [experts, copies_max], row-major
};
LogicalMap logical_to_physical(const Placement& placement, std::size_t experts);

}  // namespace penstock::experts
