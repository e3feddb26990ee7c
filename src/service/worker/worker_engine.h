// WorkerEngine: what a worker needs of an engine, embedded or driven from afar.
//
// The worker submits requests between steps and calls step() while has_work(); each step appends
// what the choices got. app/ adapts engine::Engine to it, tests and benches bring their own.
//
// Invariants: an accepted request gets outputs until each choice finished, at most one `finish` per
// choice; an output with FinishReason::kError ends its request. Outputs for a request after its
// cancel() are allowed and ignored by the caller.
// Errors: submit() refuses one request with a code; nothing else fails.
// Concurrency: one thread calls everything; description() is constant and readable from any.
// Source: design.md section 4.
#pragma once

#include <functional>
#include <vector>

#include "domain/engine.h"
#include "domain/experts.h"

namespace penstock::service {

class WorkerEngine {
 public:
  virtual ~WorkerEngine() = default;
  // The model it serves; the same for the engine's whole life.
  virtual const ModelDescription& description() const = 0;
  // Queues a request; `request.id` is the worker's own number, never used twice.
  virtual Status submit(EngineRequest request) = 0;
  // Ends a request early; unknown ids are ignored.
  virtual void cancel(RequestId request) = 0;
  // True while a step() would do something.
  virtual bool has_work() const = 0;
  // Runs one iteration and appends its outputs.
  virtual void step(std::vector<EngineOutput>& outputs) = 0;
  virtual EngineLoad load() const = 0;
  // Where the experts of the model run and what they got; nothing without routed experts.
  virtual ExpertUse expert_use() const { return {}; }
  virtual ExpertReport expert_report() const { return {}; }
  // Runs the experts where the map says, from the next step on; no answer changes. Fails with
  // kInvalidArgument for a map that is impossible for this model, kUnsupported where there is
  // nothing to place.
  virtual Status set_expert_map(const ExpertMap& map) {
    static_cast<void>(map);
    return fail(ErrorCode::kUnsupported, "this engine places no experts", "map");
  }
  // `waker` may be called from any thread when has_work() has become true by itself.
  virtual void set_waker(std::function<void()> waker) { static_cast<void>(waker); }
};

}  // namespace penstock::service
