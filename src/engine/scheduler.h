// Decides what each forward pass computes: continuous batching, chunked prefill, preemption.
//
// Sequences are ordered by (submission, choice). Each step the token budget goes first to sequences
// that need one row (decodes), then to unfinished prompts, oldest first, then to admissions from
// the queue, in order. Blocks are reserved oldest first; when the pool is full the youngest
// sequence that holds blocks gives them all back and returns to its place in the queue with the
// tokens it has: it is recomputed later, to the same bits. A request with n choices is one sequence
// until its prompt is computed; fork() then lets the others share its blocks, and a shared block is
// copied before it is written.
//
// Invariants: the oldest sequence always gets on (submit() admits no request that the empty pool
// could not hold); a scheduled sequence owns the block it writes; every block reference is released
// when its sequence ends. Deterministic: no clock, no randomness. Errors: none; validation is the
// engine's. Concurrency: one thread. Source: design.md section 8.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "domain/engine.h"
#include "engine/batch.h"
#include "engine/constraint.h"
#include "engine/kv_pool.h"

namespace penstock::engine {

// A request as the engine keeps it until all its choices have finished.
struct Request {
  EngineRequest request;
  std::uint64_t order = 0;
  std::uint32_t cached_tokens = 0;
  bool forked = false;
  std::vector<bool> finished;  // [choices]
};

struct Sequence {
  Request* request = nullptr;
  std::uint32_t choice = 0;
  std::vector<TokenId> tokens;       // prompt, emitted, generated
  std::uint32_t computed = 0;        // of tokens: have KV
  std::vector<BlockId> blocks;       // cover at least [0, computed)
  std::uint32_t scheduled = 0;       // rows in the batch being planned or run
  std::uint32_t shown = 0;           // leading blocks that the sink has taken or that were loaded
  std::uint32_t offered = 0;         // leading blocks that it was shown, taken or not
  std::shared_ptr<PrefixLoad> load;  // of blocks [0, load->blocks()), until it has ended
  std::shared_ptr<RemotePrefix> remote;  // waited for: nothing is computed before it has arrived
  std::unique_ptr<TokenConstraint> constraint;  // null before the first draw, or without one
  std::uint32_t constrained = 0;                // tokens behind the prompt that it was told of
  std::vector<std::uint64_t> allowed;           // what may come next; empty: all
  std::uint32_t allowed_at = 0;                 // length() that `allowed` is of

  std::uint32_t length() const { return static_cast<std::uint32_t>(tokens.size()); }
  std::uint32_t pending() const { return length() - computed; }
  std::uint32_t prompt_length() const {
    return static_cast<std::uint32_t>(request->request.prompt->size());
  }
  std::uint32_t generated() const { return length() - prompt_length(); }
  bool older_than(const Sequence& other) const {
    return request->order != other.request->order ? request->order < other.request->order
                                                  : choice < other.choice;
  }
};

struct SchedulerLimits {
  std::uint32_t max_batch_tokens = 0;
  std::uint32_t max_sequences = 0;
};

struct PlanStats {
  std::uint32_t prefill_tokens = 0;
  std::uint32_t decode_tokens = 0;
  std::uint32_t preempted = 0;
};

class Scheduler {
 public:
  Scheduler(KvPool& kv, SchedulerLimits limits, std::uint32_t layers)
      : kv_(kv), limits_(limits), layers_(layers) {}
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues choice 0 of the request; one of `load` and `remote` may bring KV of its first tokens.
  void add(std::unique_ptr<Request> request, std::shared_ptr<PrefixLoad> load,
           std::shared_ptr<RemotePrefix> remote);
  Request* find(RequestId id);

  // Fills the batch for the next forward pass and marks what each sequence gets. A sequence whose
  // last pending token is in the batch asks for logits; logit_sequences() lists those, row by row.
  PlanStats plan(Batch& batch);
  // After advance(), null stands for a sequence whose rows were computed on a prefix that turned
  // out to be wrong: they are computed again.
  const std::vector<Sequence*>& logit_sequences() const { return logit_sequences_; }
  // The forward pass is done: scheduled rows are computed. Loads that took part in it have ended.
  void advance();
  void set_block_sink(BlockSink* sink) { sink_ = sink; }
  void set_leg_sink(LegSink* sink) { leg_sink_ = sink; }

  // Makes the other choices of a sequence whose prompt was just computed; they share its blocks, or
  // wait when max_sequences run already. Returns the new sequences, by choice.
  std::vector<Sequence*> fork(Sequence& first);
  // Ends a sequence and releases its blocks; `sequence` is gone afterwards.
  void finish(Sequence& sequence);
  // Ends all sequences of the request. The request itself stays until forget().
  void drop(const Request& request);
  void forget(RequestId id);
  // Ends everything, without a word.
  void clear();

  std::uint32_t running_count() const { return static_cast<std::uint32_t>(running_.size()); }
  std::uint32_t waiting_count() const { return static_cast<std::uint32_t>(waiting_.size()); }
  // Of running_count(): wait for KV from another worker.
  std::uint32_t remote_count() const;
  // Tokens of prompts (and recomputed ones) that are still to be computed here.
  std::uint64_t prompt_tokens_waiting() const;
  bool idle() const { return running_.empty() && waiting_.empty(); }
  // False when a plan() would find nothing to do: all that is left waits for KV, or for blocks that
  // somebody outside holds.
  bool can_move() const;

 private:
  using Owned = std::unique_ptr<Sequence>;

  void assign_rows();
  // With nothing else to do, the oldest sequence with a load gets rows and waits for its layers.
  void assign_to_loading();
  enum class Room : std::uint8_t { kYes, kSoon, kNone };
  Room reserve(Sequence& sequence, std::uint32_t rows);
  // Takes the blocks of the youngest holder that is younger than `sequence`; false when none is.
  bool reclaim(const Sequence& sequence);
  void give_back(Sequence& sequence);
  // True for a sequence that waits for layer 0 of its prefix.
  bool is_loading(const Sequence& sequence) const;
  void start_load(Sequence& sequence);
  // Takes the finished load away and cuts the sequence to what arrived; false when it was cut.
  bool end_load(Sequence& sequence);
  void show(Sequence& sequence, bool answer_end);
  // Lets sequences go on whose remote prefix has arrived.
  void settle_remotes();
  void settle(Sequence& sequence);
  void queue(Owned sequence);
  void admit(std::uint32_t budget);
  void emit(Batch& batch, PlanStats& stats);
  void requeue_preempted();

  KvPool& kv_;
  SchedulerLimits limits_;
  std::uint32_t layers_;
  BlockSink* sink_ = nullptr;
  LegSink* leg_sink_ = nullptr;
  bool stalled_ = false;            // the last plan() was empty, and nobody came or went since
  std::uint32_t stalled_free_ = 0;  // blocks that were free then
  std::uint64_t next_order_ = 1;
  std::map<RequestId, std::unique_ptr<Request>> requests_;
  std::vector<Owned> running_;        // oldest first
  std::deque<Owned> waiting_;         // oldest first
  std::vector<Sequence*> preempted_;  // of running_, while planning
  std::vector<Sequence*> logit_sequences_;
};

}  // namespace penstock::engine
