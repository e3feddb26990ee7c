// ComputePool: a named pool of threads for work that would stall a shard, with a bounded queue.
//
// run_on() awaits a piece of work: it runs on a pool thread, the caller goes on on its own shard.
// Errors: kOverloaded when the queue is full. Concurrency: submit() from any thread.
#pragma once

#include <functional>
#include <utility>

#include "base/result.h"
#include "base/task.h"
#include "port/clock.h"

namespace penstock {

class ComputePool {
 public:
  virtual ~ComputePool() = default;
  // False when the queue is full; the work is then not taken.
  virtual bool submit(std::function<void()> work) = 0;
};

// The awaiting task must not be destroyed while the work runs (tasks of a Gate never are).
inline Task<Status> run_on(ComputePool& pool, Clock& clock, std::function<void()> work) {
  OneShot<bool> done;
  const bool taken = pool.submit([&clock, &done, work = std::move(work)] {
    work();
    clock.post([&done] { done.set(true); });
  });
  if (!taken) co_return fail(ErrorCode::kOverloaded, "too many long prompts are being encoded");
  co_await done;
  co_return Status{};
}

}  // namespace penstock
