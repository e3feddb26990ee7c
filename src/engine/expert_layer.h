// Where the experts of one layer run, and what they got: slots of logical ranks, and counts.
//
// At first every expert is its own rank with one slot. With a map, an expert may have copies in the
// slots of several ranks; its rows are dealt to its copies in turn. The rank is logical: all slots
// are computed here, in the order of ranks, as a group of machines would each compute theirs.
//
// Invariants: every expert has a slot, and no rank two of one; counts only grow until reset().
// Errors: check_expert_map() fails with kInvalidArgument naming what is impossible, kUnsupported
// for a model without routed experts. Concurrency: one thread.
// Source: docs/experts.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "domain/experts.h"

namespace penstock::engine {

// Whether a model with so many layers of so many routed experts can use the map.
Status check_expert_map(const ExpertMap& map, std::uint32_t layers, std::uint32_t experts);

struct ExpertLayer {
  explicit ExpertLayer(std::uint32_t experts);

  // `wanted` [ranks * slots per rank]: the expert of each slot. Precondition: check_expert_map().
  void place(std::span<const std::uint16_t> wanted, std::uint32_t rank_count);
  // Forgets what was counted.
  void reset();
  // The slot for the next row of an expert, which is counted.
  std::uint32_t take(std::uint32_t expert) {
    const std::uint32_t first = first_copy[expert];
    const std::uint32_t copies = first_copy[expert + 1] - first;
    const std::uint64_t turn = picks[expert]++;
    return copies == 1 ? copy_slots[first] : copy_slots[first + turn % copies];
  }
  // Counts a pass whose slot s got rows [starts[s], starts[s + 1]).
  void count_pass(std::span<const std::uint32_t> starts);

  std::vector<std::uint16_t> slots;       // [slots], expert of each slot
  std::vector<std::uint32_t> first_copy;  // [experts + 1], into copy_slots
  std::vector<std::uint32_t> copy_slots;  // [slots], ascending per expert
  std::vector<std::uint64_t> picks;       // [experts]
  std::vector<std::uint64_t> rank_picks;  // [ranks], since place()
  std::uint64_t picks_all = 0;
  std::uint64_t paced = 0;  // sum over passes of ranks * picks of the busiest rank
};

}  // namespace penstock::engine
