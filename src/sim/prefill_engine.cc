#include "sim/prefill_engine.h"

#include <algorithm>

namespace penstock::sim {

PrefillEngine::PrefillEngine(EventQueue& queue, const routing::Profile& profile, std::size_t index,
                             std::size_t ranks, std::uint64_t seed, const PrefillEvents& events)
    : queue_(queue),
      profile_(profile),
      index_(index),
      rng_(seed),
      events_(events),
      queues_(ranks),
      chunks_(ranks),
      outstanding_(ranks) {}

void PrefillEngine::push(std::size_t rank, const routing::QueuedPrompt& prompt) {
  queues_[rank].push(prompt);
  outstanding_[rank] =
      queues_[rank].outstanding_seconds(profile_.costs.prefill) + chunks_[rank].seconds;
  wake();
}

void PrefillEngine::wake() {
  if (stepping_) return;
  // After everything that happens at this instant, so that a burst is one step.
  stepping_ = true;
  queue_.post([this, life = life_] {
    if (life == life_) begin_step();
  });
}

void PrefillEngine::fail() {
  for (std::size_t rank = 0; rank < queues_.size(); ++rank) {
    queues_[rank] = {};
    chunks_[rank] = {};
    outstanding_[rank] = 0;
  }
  ++life_;
  stepping_ = false;
}

void PrefillEngine::begin_step() {
  double slowest = 0;
  for (std::size_t rank = 0; rank < queues_.size(); ++rank) {
    routing::QueuedPrompt prompt;
    while (events_.pull &&
           queues_[rank].outstanding_seconds(profile_.costs.prefill) <
               profile_.chunk_budget_seconds &&
           events_.pull(index_, rank, prompt))
      queues_[rank].push(prompt);
    queues_[rank].next_chunk(profile_.costs.prefill, profile_.chunk_budget_seconds,
                             profile_.chunk_tokens_max, chunks_[rank]);
    slowest = std::max(slowest, chunks_[rank].seconds);
  }
  if (slowest <= 0) {
    stepping_ = false;
    return;
  }
  for (std::size_t rank = 0; rank < queues_.size(); ++rank)
    for (const routing::ChunkPart& part : chunks_[rank].parts)
      events_.started(part.id);
  const double seconds = slowest * routing::sample(profile_.costs.prefill_moe, rng_);
  busy_seconds_ += seconds;
  queue_.call_at(queue_.now() + routing::to_duration(seconds), [this, life = life_] {
    if (life == life_) end_step();
  });
}

void PrefillEngine::end_step() {
  for (std::size_t rank = 0; rank < queues_.size(); ++rank) {
    // Handlers may push to this engine: the chunk is over before they run.
    const std::vector<routing::ChunkPart> parts = std::move(chunks_[rank].parts);
    chunks_[rank] = {};
    outstanding_[rank] = queues_[rank].outstanding_seconds(profile_.costs.prefill);
    for (const routing::ChunkPart& part : parts)
      if (part.last) events_.done(part.id, part.fresh);
  }
  events_.stepped(index_);
  begin_step();
}

}  // namespace penstock::sim
