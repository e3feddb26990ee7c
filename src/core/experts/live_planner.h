// Plans the experts of one model on one worker while it runs, round after round.
//
// observe() takes what all ranks of the worker report: the growth since the last time is a window
// of loads. begin() starts a round of planning (planner.h) for what these windows lead to expect,
// under the round's limits on moves; its owner steps it as long as time allows and gives it back to
// take(). map_for() says which map a rank is still to be sent. A rank that does not hold the map in
// use gets it, so a worker that was restarted has it again after the next round.
//
// Another planner's map is left alone as long as it changes: two planners would undo each other's
// work. When it has stood still for kQuietRounds rounds, it becomes the map in use, and the next
// plan builds on it.
//
// Invariants: versions only grow, also beyond those found on the ranks; counts that fell or come
// from a new run of the worker start anew and are no window; equal inputs, equal maps.
// Errors: observe() fails with kInvalidArgument when the ranks differ in size, and with the reason
// when the experts don't fit the ranks and slots that were asked for.
// Concurrency: one thread. Source: design.md section 7; docs/experts.md.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/experts/load_window.h"
#include "core/experts/planner.h"
#include "domain/experts.h"

namespace penstock::experts {

struct LivePlannerOptions {
  std::size_t ranks = 4;
  std::size_t slots_per_rank = 0;  // 0: as many as the experts need, and a spare one
  std::size_t groups = 1;
  std::size_t nodes = 1;
  PlannerOptions rounds;
  Epoch planner;  // drawn by the process
};

// The shape that such options give for a number of experts.
Shape shape_for(const LivePlannerOptions& options, std::size_t experts);

class LivePlanner {
 public:
  static constexpr int kQuietRounds = 3;

  explicit LivePlanner(const LivePlannerOptions& options) : options_(options) {}

  Status observe(Epoch worker, std::span<const ExpertReport> ranks);
  // Another planner's map is in use and changes.
  bool stands_back() const { return foreign_.version != 0 && quiet_ < kQuietRounds; }
  // Nothing when there is no load to plan for, or when it stands back.
  Result<std::optional<RoundPlanner>> begin() const;
  // True when the map in use has changed.
  bool take(RoundPlan plan);
  // For a rank as last observed; nothing when it holds the map in use, or when there is none.
  std::optional<ExpertMap> map_for(std::size_t rank) const;

  const Shape& shape() const { return shape_; }
  std::uint64_t version() const { return use_.version; }

 private:
  struct Name {  // of a map
    std::uint64_t version = 0;
    Epoch planner;
    bool operator==(const Name&) const = default;
  };
  void restart(const ExpertReport& first);
  void count(Epoch worker, std::span<const ExpertReport> ranks);
  void look_at_maps(std::span<const ExpertReport> ranks);
  void adopt(const ExpertMap& map);

  LivePlannerOptions options_;
  Shape shape_;
  std::uint32_t layers_ = 0;
  Epoch worker_;
  std::vector<std::vector<std::uint64_t>> last_;  // [ranks], picks as last observed
  std::vector<LoadWindow> windows_;               // [layers]
  std::vector<Placement> placements_;             // [layers], in use; empty: none yet
  Name use_;                                      // the map in use
  std::vector<Name> held_;                        // [ranks]
  Name foreign_;                                  // newest of another planner; version 0: none
  int quiet_ = 0;                                 // rounds since it changed
};

}  // namespace penstock::experts
