// EngineClient: one gateway shard's way to the workers. Implemented by io/control, the simulator
// and tests.
//
// The client keeps one stream per worker, reconnects with backoff, and reports each worker's
// description and load. A submitted request gets outputs through its sink until each choice has
// finished; when the stream breaks, every open request on it gets one output with
// FinishReason::kError and ErrorCode::kUnavailable, so nothing waits for ever.
//
// Invariants: the sink is called on the shard's thread, never inside submit() or cancel(); after
// forget() returns it is not called again. A worker that breaks the protocol (unknown request is
// ignored when it was forgotten; steps going backwards, choice or finish twice, malformed tokens)
// is disconnected with a reason.
// Errors: submit() fails with kUnavailable when the worker has no stream, kOverloaded when its send
// queue is full. Concurrency: shard thread only.
// Source: design.md section 4; docs/protocol/engine.md.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "domain/engine.h"
#include "domain/experts.h"

namespace penstock {

struct WorkerView {
  WorkerDescription description;
  std::vector<EngineLoad> loads;  // one per rank
  bool connected = false;
  bool draining = false;
  HandoffUse handoffs;
  std::vector<ExpertUse> experts;  // one per rank; empty: not said yet
  Instant heard_at;                // last frame; standing still for 2 s means absent
  std::uint32_t in_flight = 0;     // requests of this gateway shard
  // Grows whenever anything else here but `in_flight` changes, for who keeps what it has read. The
  // description stays as it is while its epoch does. 0: not counted, everything may have changed.
  std::uint64_t revision = 0;
};

class EngineClient {
 public:
  using Sink = std::function<void(EngineOutput)>;

  virtual ~EngineClient() = default;
  // The workers known now, in the order of their ids. Valid until the next turn of the shard's
  // loop.
  virtual std::span<const WorkerView> workers() const = 0;
  // Sends the request to the worker. `request.id` must be new for this client.
  virtual Status submit(WorkerId worker, EngineRequest request, Sink sink) = 0;
  // Asks the worker to stop; the sink still gets the final outputs.
  virtual void cancel(RequestId request) = 0;
  // Cancels if needed and drops the sink at once.
  virtual void forget(RequestId request) = 0;
};

}  // namespace penstock
