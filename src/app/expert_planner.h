// ExpertPlanner: a thread of the gateway that plans where experts run, and tells the workers.
//
// Every interval it asks all workers for their expert loads, plans each worker's models
// (core/experts/live_planner) and gives their ranks the map that they lack. Planning has a limit of
// time; what was not reached stays as it is. Off unless an interval is configured.
//
// Invariants: never waits for a shard, and no shard for it; a refusal or a silent rank is logged
// and counted, and tried again in the next round. Errors: none come out.
// Concurrency: its own thread and streams; the destructor stops and joins it.
// Source: docs/experts.md.
#pragma once

#include <atomic>
#include <thread>

#include "app/options.h"
#include "io/telemetry/metrics.h"

namespace penstock {

class ExpertPlanner {
 public:
  // Both must outlive it. Precondition: an interval above 0.
  ExpertPlanner(const Options& options, Metrics& metrics);
  ~ExpertPlanner();
  ExpertPlanner(const ExpertPlanner&) = delete;
  ExpertPlanner& operator=(const ExpertPlanner&) = delete;

 private:
  void run();

  const Options& options_;
  Metrics& metrics_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace penstock
