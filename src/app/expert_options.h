// The options about experts as the planner takes them. Concurrency: pure.
#pragma once

#include "app/options.h"
#include "core/experts/live_planner.h"

namespace penstock {

inline experts::LivePlannerOptions live_planner_options(const Options& options) {
  experts::LivePlannerOptions out;
  out.ranks = options.expert_ranks;
  out.slots_per_rank = options.expert_slots;
  out.groups = options.expert_groups;
  out.nodes = options.expert_nodes;
  out.rounds.layer_moves_max = options.expert_layer_moves;
  out.rounds.round_moves_max = options.expert_round_moves;
  return out;
}

}  // namespace penstock
