// SimEngine: an engine as the simulated worker runs it: WorkerEngine, and what its rank needs.
//
// Invariants: step() does the work at once; step_cost() is how much virtual time it takes, by what
// the next step would do as of now. Concurrency: one thread, like all of tests/sim.
#pragma once

#include <cstdint>

#include "port/handoff.h"
#include "service/handoff/handoff_service.h"
#include "service/worker/worker_engine.h"

namespace penstock::simulated {

class SimEngine : public service::WorkerEngine {
 public:
  virtual service::RankMemory memory() = 0;
  // Takes part in handoffs from now on.
  virtual void connect(HandoffPort& port) = 0;
  // The port's wake.
  virtual void on_handoff_news() = 0;
  // The service behind the port is about to go.
  virtual void detach() = 0;
  virtual Duration step_cost() const = 0;
  // Blocks of KV that are not free, whoever holds them.
  virtual std::uint32_t blocks_used() const = 0;
  // Requests accepted and not over.
  virtual std::size_t open() const = 0;
};

}  // namespace penstock::simulated
