// A model of one decode engine: ranks that step together, with continuous batching and a KV pool.
//
// Each step gives every running request one token and lasts as long as the slowest rank, times a
// sample of moe_lb. Between steps requests that wait join when the rank has a place and KV for what
// they have; when growth fills a pool, the newest request of the rank is preempted: it waits, and
// its KV is computed again (its tokens so far, at prefill cost, on this rank) when it returns.
//
// It may compute prompts too: a rank's part of a step then takes a chunk as long as its step stays
// within `prompt_step_seconds`, so that a prompt never makes a gap longer than that (times moe_lb),
// and answers go first. A chunk has no base cost of its own.
//
// Steps cost O(ranks), not O(requests): a rank keeps its batch and its KV as numbers, and a request
// is touched when it joins, leaves or is preempted.
//
// Concurrency: one thread, on the queue's time. Source: design.md sections 7, 9.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <vector>

#include "base/rng.h"
#include "core/routing/profile.h"
#include "core/routing/quota_queue.h"
#include "sim/event_queue.h"

namespace penstock::sim {

struct DecodeEvents {
  std::function<void(RequestId)> finished;
  // One step is over: it took so long, and gave so many tokens.
  std::function<void(std::size_t engine, double seconds, std::int64_t tokens)> stepped;
  // It is in the step that begins now.
  std::function<void(RequestId)> joined;
  // It got its last token for now, and waits.
  std::function<void(RequestId)> preempted;
  // A prompt is computed.
  std::function<void(RequestId, std::int64_t last_chunk)> prompt_done = {};
};

class DecodeEngine {
 public:
  DecodeEngine(EventQueue& queue, const routing::Profile& profile, std::size_t index,
               std::size_t ranks, std::uint64_t seed, const DecodeEvents& events,
               double prompt_step_seconds = 0);

  // Everything that runs or waits here, which is forgotten; a step under way ends without effect.
  struct Lost {
    RequestId id;
    std::int64_t left = 0;  // tokens still to be generated
  };
  std::vector<Lost> fail();
  // `context` tokens of KV are there; `left` tokens are to be generated (at least one).
  void push(std::size_t rank, RequestId id, std::int64_t context, std::int64_t left);

  // A prompt to be computed here; what comes after is another push.
  void push_prompt(std::size_t rank, const routing::QueuedPrompt& prompt);
  // Predicted compute of prompts not done yet, the running step's chunk included; and their number.
  double prompt_seconds(std::size_t rank) const;
  std::size_t prompts(std::size_t rank) const { return ranks_[rank].prompts.size(); }

  bool idle() const { return !stepping_; }
  std::int64_t running(std::size_t rank) const { return ranks_[rank].batch; }
  std::int64_t waiting(std::size_t rank) const {
    return static_cast<std::int64_t>(ranks_[rank].waiting.size());
  }
  std::int64_t kv_tokens(std::size_t rank) const { return ranks_[rank].kv_tokens; }
  std::size_t ranks() const { return ranks_.size(); }
  std::uint64_t preemptions() const { return preemptions_; }

 private:
  struct Member {
    RequestId id;
    std::int64_t context = 0;  // when it joined
    std::int64_t left = 0;     // when it joined
    std::uint64_t joined_step = 0;
    std::size_t rank = 0;
    bool running = false;
    bool recompute = false;  // its KV is gone
  };
  struct Rank {
    std::int64_t batch = 0;
    std::int64_t kv_tokens = 0;
    double recompute_seconds = 0;        // owed in the next step
    std::deque<std::uint32_t> waiting;   // members
    std::vector<std::uint32_t> running;  // members, by joining; may hold ones that have left
    routing::QuotaQueue prompts;
    routing::Chunk chunk;  // in the step under way
  };
  using Finish = std::pair<std::uint64_t, std::uint32_t>;  // step, member

  void wake();
  void begin_step();
  bool take_chunks(double& slowest);
  void end_step(double seconds);
  void join(Rank& rank);
  void preempt(Rank& rank);
  void leave(std::uint32_t member);

  EventQueue& queue_;
  const routing::Profile& profile_;
  std::size_t index_;
  Rng rng_;
  const DecodeEvents& events_;
  double prompt_step_seconds_;
  PrefillCoefficients chunk_cost_;  // of the profile's, without the base
  std::vector<Rank> ranks_;
  std::vector<Member> members_;
  std::vector<std::uint32_t> free_;
  std::priority_queue<Finish, std::vector<Finish>, std::greater<>> finishes_;
  std::vector<routing::StepLoad> loads_;
  std::uint64_t step_ = 0;
  std::uint64_t life_ = 0;  // steps of earlier lives end without effect
  bool stepping_ = false;
  std::uint64_t preemptions_ = 0;
};

}  // namespace penstock::sim
