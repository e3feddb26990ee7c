#include "sim/decode_engine.h"

#include <algorithm>

#include "base/check.h"

namespace penstock::sim {

DecodeEngine::DecodeEngine(EventQueue& queue, const routing::Profile& profile, std::size_t index,
                           std::size_t ranks, std::uint64_t seed, const DecodeEvents& events,
                           double prompt_step_seconds)
    : queue_(queue),
      profile_(profile),
      index_(index),
      rng_(seed),
      events_(events),
      prompt_step_seconds_(prompt_step_seconds),
      chunk_cost_(profile.costs.prefill),
      ranks_(ranks),
      loads_(ranks) {
  chunk_cost_.base = 0;
}

void DecodeEngine::wake() {
  if (stepping_) return;
  stepping_ = true;
  queue_.post([this, life = life_] {
    if (life == life_) begin_step();
  });
}

void DecodeEngine::push_prompt(std::size_t rank, const routing::QueuedPrompt& prompt) {
  ranks_[rank].prompts.push(prompt);
  wake();
}

double DecodeEngine::prompt_seconds(std::size_t rank) const {
  return ranks_[rank].prompts.outstanding_seconds(chunk_cost_) + ranks_[rank].chunk.seconds;
}

void DecodeEngine::push(std::size_t rank, RequestId id, std::int64_t context, std::int64_t left) {
  ENSURE(left > 0);
  std::uint32_t member = 0;
  if (free_.empty()) {
    member = static_cast<std::uint32_t>(members_.size());
    members_.emplace_back();
  } else {
    member = free_.back();
    free_.pop_back();
  }
  members_[member] = {id, context, left, 0, rank, false, false};
  ranks_[rank].waiting.push_back(member);
  wake();
}

// A request larger than the pool would wait for ever: an empty rank takes it anyway, which stands
// for an engine that refuses it; placement does not send it here.
void DecodeEngine::join(Rank& rank) {
  const routing::PoolProfile& pool = profile_.decode_pool;
  while (!rank.waiting.empty() && rank.batch < pool.requests_max) {
    Member& member = members_[rank.waiting.front()];
    if (rank.batch > 0 && rank.kv_tokens + member.context + rank.batch >= pool.kv_tokens) break;
    if (member.recompute)
      rank.recompute_seconds +=
          routing::prefill_seconds(profile_.costs.prefill, static_cast<double>(member.context), 0);
    member.recompute = false;
    member.running = true;
    member.joined_step = step_;
    ++rank.batch;
    rank.kv_tokens += member.context;
    rank.running.push_back(rank.waiting.front());
    finishes_.emplace(step_ + static_cast<std::uint64_t>(member.left), rank.waiting.front());
    rank.waiting.pop_front();
    events_.joined(member.id);
  }
}

void DecodeEngine::leave(std::uint32_t index) {
  Member& member = members_[index];
  Rank& rank = ranks_[member.rank];
  rank.kv_tokens -= member.context + static_cast<std::int64_t>(step_ - member.joined_step);
  --rank.batch;
  member.running = false;
  std::erase(rank.running, index);
}

// The newest goes: it has the least to lose.
void DecodeEngine::preempt(Rank& rank) {
  const std::uint32_t index = rank.running.back();
  Member& member = members_[index];
  leave(index);
  const auto done = static_cast<std::int64_t>(step_ - member.joined_step);
  member.context += done;
  member.left -= done;
  member.recompute = true;
  rank.waiting.push_front(index);
  ++preemptions_;
  events_.preempted(member.id);
}

// What each rank's answers leave of the step; `slowest`: of answers and chunk together.
bool DecodeEngine::take_chunks(double& slowest) {
  bool any = false;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    const double answers =
        routing::step_seconds(profile_.costs.step, static_cast<double>(loads_[r].batch),
                              static_cast<double>(loads_[r].kv_tokens));
    const double before = std::max(answers, profile_.costs.step.base);
    if (rank.prompts.size() > 0 && before < prompt_step_seconds_)
      rank.prompts.next_chunk(chunk_cost_, prompt_step_seconds_ - before, profile_.chunk_tokens_max,
                              rank.chunk);
    any = any || !rank.chunk.parts.empty();
    slowest = std::max(slowest, rank.chunk.parts.empty() ? answers : before + rank.chunk.seconds);
  }
  return any;
}

void DecodeEngine::begin_step() {
  bool any = false;
  double recompute = 0;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    while (rank.batch > 1 && rank.kv_tokens + rank.batch > profile_.decode_pool.kv_tokens)
      preempt(rank);
    join(rank);
    loads_[r] = {rank.batch, rank.kv_tokens};
    recompute = std::max(recompute, rank.recompute_seconds);
    rank.recompute_seconds = 0;
    any = any || rank.batch > 0;
  }
  double slowest = 0;
  if (prompt_step_seconds_ > 0 && take_chunks(slowest)) any = true;
  if (!any) {
    stepping_ = false;
    return;
  }
  const double moe = routing::sample(profile_.costs.decode_moe, rng_);
  const double seconds =
      std::max(routing::group_step_seconds(profile_.costs.step, loads_, moe), slowest * moe) +
      recompute;
  queue_.call_at(queue_.now() + routing::to_duration(seconds), [this, seconds, life = life_] {
    if (life == life_) end_step(seconds);
  });
}

std::vector<DecodeEngine::Lost> DecodeEngine::fail() {
  std::vector<Lost> lost;
  for (Rank& rank : ranks_) {
    for (const std::uint32_t index : rank.running) {
      const Member& member = members_[index];
      lost.push_back(
          {member.id, member.left - static_cast<std::int64_t>(step_ - member.joined_step)});
    }
    for (const std::uint32_t index : rank.waiting)
      lost.push_back({members_[index].id, members_[index].left});
    rank = {};
  }
  members_.clear();
  free_.clear();
  finishes_ = {};
  ++life_;
  stepping_ = false;
  return lost;
}

void DecodeEngine::end_step(double seconds) {
  ++step_;
  std::int64_t tokens = 0;
  for (Rank& rank : ranks_) {
    rank.kv_tokens += rank.batch;
    tokens += rank.batch;
  }
  for (Rank& rank : ranks_) {
    // Handlers may push to this engine: the chunk is over before they run.
    const std::vector<routing::ChunkPart> parts = std::move(rank.chunk.parts);
    rank.chunk = {};
    for (const routing::ChunkPart& part : parts)
      if (part.last) events_.prompt_done(part.id, part.fresh);
  }
  while (!finishes_.empty() && finishes_.top().first <= step_) {
    const auto [step, index] = finishes_.top();
    finishes_.pop();
    const Member& member = members_[index];
    // Preempted since (it has a later entry, or none while it waits), or its place reused.
    if (!member.running || member.joined_step + static_cast<std::uint64_t>(member.left) != step)
      continue;
    const RequestId id = member.id;
    leave(index);
    free_.push_back(index);
    events_.finished(id);
  }
  events_.stepped(index_, seconds, tokens);
  begin_step();
}

}  // namespace penstock::sim
