// Where a model's routed experts run and how loaded they are, as a planner and a worker tell each
// other.
//
// The experts of a layer lie in slots of expert ranks (GPUs of an expert-parallel group; in the
// embedded engine logical ones), each slot with a copy of one expert. A map says so for all layers.
// It has a version that only grows, names the run of the worker it was made for, and the version
// that it replaces, so that a map that was made for another state is refused instead of applied.
//
// Units and shapes: picks count (token, expert) pairs; a token that goes to k experts is k picks.
// Invariants: counts only grow while a worker runs; a new run of the worker (its epoch) starts at
// 0. Concurrency: values. Source: docs/protocol/engine.md; docs/experts.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/units.h"

namespace penstock {

struct ExpertMap {
  std::uint64_t version = 0;   // 0: no map
  std::uint64_t replaces = 0;  // the version that its receiver must hold
  Epoch worker;                // the run of the worker that it was made for
  Epoch planner;               // the run of the planner that made it
  std::uint32_t layers = 0;    // with routed experts
  std::uint32_t experts = 0;
  std::uint32_t ranks = 0;
  std::uint32_t slots_per_rank = 0;
  std::vector<std::uint16_t> slots;  // [layers, ranks * slots_per_rank], expert of each slot

  std::size_t layer_slots() const { return std::size_t{ranks} * slots_per_rank; }
  bool operator==(const ExpertMap&) const = default;
};

// What is said at every heartbeat; all zero for an engine without routed experts.
struct ExpertUse {
  std::uint64_t map_version = 0;
  std::uint32_t first_layer = 0;     // the model's number of the first layer with routed experts
  std::vector<std::uint64_t> picks;  // [layers]
  // [layers]: what the picks would have been had all ranks had as many as the busiest, summed over
  // passes. Over the picks: the mean of max/mean, weighted by the tokens of a pass. Without a map
  // every expert counts as a rank.
  std::vector<std::uint64_t> paced;

  bool operator==(const ExpertUse&) const = default;
};

// All there is to know, on request.
struct ExpertReport {
  std::uint32_t first_layer = 0;
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
  std::vector<std::uint64_t> picks;       // [layers, experts] since the engine started, row-major
  ExpertMap map;                          // in use
  std::vector<std::uint64_t> rank_picks;  // [layers, ranks] since that map came; empty without one

  bool operator==(const ExpertReport&) const = default;
};

}  // namespace penstock
