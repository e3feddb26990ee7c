// What one prefill rank has been given: a FIFO of prompts, and the chunk to run next.
//
// Outstanding quota is the predicted compute of all tokens not yet computed. The next chunk takes
// prompts in order, each as far as the step's time budget allows through the quadratic cost model
// (so a chunk deep inside a long context is shorter), until the budget or the token limit is used
// up.
//
// Invariants: FIFO; a chunk makes progress (at least one token) even when the budget is too small
// for any; its predicted time is within the budget otherwise. Units: tokens, seconds.
// Concurrency: one thread. Source: design.md section 7; facts: deepseek.md section 3.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/units.h"
#include "core/routing/cost_model.h"

namespace penstock::routing {

struct QueuedPrompt {
  RequestId id;
  std::int64_t context = 0;  // tokens computed or loaded so far
  std::int64_t fresh = 0;    // tokens still to compute
};

struct ChunkPart {
  RequestId id;
  std::int64_t context = 0;
  std::int64_t fresh = 0;
  bool last = false;  // the prompt is done after it
};

struct Chunk {
  std::vector<ChunkPart> parts;
  double seconds = 0;  // predicted: one base cost, and each part's tokens and pairs
};

class QuotaQueue {
 public:
  void push(const QueuedPrompt& prompt) { queue_.push_back(prompt); }
  // Removes a prompt wherever it is; false when it is not there.
  bool remove(RequestId id);

  // Takes the next chunk out of the queue; empty when there is nothing to do. `budget_seconds` is
  // for the whole step.
  void next_chunk(const PrefillCoefficients& cost, double budget_seconds, std::int64_t tokens_max,
                  Chunk& out);

  double outstanding_seconds(const PrefillCoefficients& cost) const;
  std::int64_t outstanding_tokens() const;
  std::size_t size() const { return queue_.size(); }
  const std::deque<QueuedPrompt>& prompts() const { return queue_; }

 private:
  std::deque<QueuedPrompt> queue_;
};

}  // namespace penstock::routing
