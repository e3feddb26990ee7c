// EngineRun: one request on the engines, from submit to the last output, wherever it runs.
//
// Owns the engine's side of a request: destroying it forgets the request, so no path leaks one.
// Outputs of a choice merge while the reader is busy (a slow client), so memory is bounded by the
// tokens asked for. When the worker dies the run is placed again and goes on: with the tokens
// emitted so far when there is one choice, else only if nothing was emitted yet (law 3: the same
// text follows, because sampling depends on seed, choice and position only).
//
// Invariants: next() yields each token once and in order, over any number of moves.
// Errors: submit() as EngineClient; next() kDeadlineExceeded, what abandon() gave, the
// engine's own error, or kUnavailable when the moves are used up.
// Concurrency: shard thread only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "service/gateway/context.h"
#include "service/gateway/placement.h"

namespace penstock::gateway {

class EngineRun {
 public:
  EngineRun(GatewayContext& context, Instant deadline);
  ~EngineRun();
  EngineRun(const EngineRun&) = delete;
  EngineRun& operator=(const EngineRun&) = delete;

  // Waits for a worker that serves the model, up to worker_wait_max and the deadline.
  Task<Result<Placement>> place(std::string_view model);
  // Sends the request to the placed worker. request.id is set here.
  Status submit(const Placement& placement, EngineRequest request);
  // The next output; nullopt when `wake_at` passes first.
  Task<Result<std::optional<EngineOutput>>> next(Instant wake_at);
  // Nobody wants the answer any more: place() and next() fail with `why`, the engine stops.
  void abandon(Error why);
  // Everything needed has come (a stop string): the engine stops, next() is not called again.
  void stop();

  std::uint32_t moves() const { return moves_; }

 private:
  void receive(EngineOutput output);
  Task<Status> move_on(const Error& why);
  void release();

  GatewayContext& context_;
  Instant deadline_;
  EngineRequest request_;  // `emitted` grows with the outputs
  bool submitted_ = false;
  bool emitted_any_ = false;
  std::optional<Error> abandoned_;
  std::uint32_t moves_ = 0;
  Channel<EngineOutput> outputs_;
};

}  // namespace penstock::gateway
