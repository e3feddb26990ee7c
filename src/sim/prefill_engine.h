// A model of one prefill engine: ranks that step together, each with a FIFO of prompts.
//
// A step takes the next chunk of every rank (core/routing/quota_queue.h: the same object that a
// worker uses) and lasts as long as the slowest of them, times a sample of moe_lb. An engine with
// nothing to do does not step; ranks with nothing to do wait for the others.
//
// Concurrency: one thread, on the queue's time. Source: design.md sections 7, 9.
#pragma once

#include <functional>
#include <vector>

#include "base/rng.h"
#include "core/routing/profile.h"
#include "core/routing/quota_queue.h"
#include "sim/event_queue.h"

namespace penstock::sim {

struct PrefillEvents {
  std::function<void(RequestId)> started;                        // its first chunk is in a step
  std::function<void(RequestId, std::int64_t last_chunk)> done;  // its prompt is computed
  std::function<void(std::size_t engine)> stepped;               // loads have changed
  // Where prompts wait in front and engines take them: what the rank shall have next, if anything.
  std::function<bool(std::size_t engine, std::size_t rank, routing::QueuedPrompt&)> pull = {};
};

class PrefillEngine {
 public:
  PrefillEngine(EventQueue& queue, const routing::Profile& profile, std::size_t index,
                std::size_t ranks, std::uint64_t seed, const PrefillEvents& events);

  void push(std::size_t rank, const routing::QueuedPrompt& prompt);
  // Takes from pull() now, unless a step is under way.
  void wake();
  bool idle() const { return !stepping_; }
  // Forgets everything given to it and not done; a step under way ends without effect.
  void fail();
  // Predicted compute not done yet, the running step's chunk included.
  double outstanding_seconds(std::size_t rank) const { return outstanding_[rank]; }
  std::int64_t waiting(std::size_t rank) const {
    return static_cast<std::int64_t>(queues_[rank].size());
  }
  double busy_seconds() const { return busy_seconds_; }

 private:
  void begin_step();
  void end_step();

  EventQueue& queue_;
  const routing::Profile& profile_;
  std::size_t index_;
  Rng rng_;
  const PrefillEvents& events_;
  std::vector<routing::QuotaQueue> queues_;
  std::vector<routing::Chunk> chunks_;
  std::vector<double> outstanding_;
  bool stepping_ = false;
  std::uint64_t life_ = 0;  // steps of earlier lives end without effect
  double busy_seconds_ = 0;
};

}  // namespace penstock::sim
