// Leases: what was asked for, what of it is there, and who may read it until when.
//
// acquire() walks the chain from its first block as far as blocks are in memory, being loaded, on
// disk, at another host, or in the cluster store. What the rest of a chain has there is asked
// first, without waiting: the walk goes on when the answer is there. Those in memory are pinned at
// once, the others are loaded in order, as many at a time as Loads allows; a lease that finds Loads
// full waits in line. The readable prefix is granted as it grows, in one message per lease and
// turn. The lease is final when all that was found has arrived, when a block of it failed (the
// prefix ends there, with that reason), or when its budget is over (kTooSlow; what arrived later is
// sealed for others). After that it only holds pins.
//
// A block on disk is loaded when that is predicted to be faster than computing it: the engine says
// what computing costs, LoadModel knows how fast the disk has been. Memory is always faster.
//
// Of the window depths that were asked for, those in memory are granted once the prefix covers
// them. From disk only the deepest is loaded, and only when it lies deeper than those in memory: a
// hit resumes at one point, the deepest.
//
// A hit from memory of a block that is not on disk is offered to the disk again (second use).
//
// Invariants: one Granted with `final` per lease, also when it is released early; only sealed
// blocks are granted; a lease pins each of its ready blocks once; a lease that is gone waits for
// nothing. Cost: O(keys) per acquire. Concurrency: one thread. Source: facts 6c, 7d rule 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/kvcache/load_model.h"
#include "port/block_tier.h"
#include "service/kvd/acquire_record.h"
#include "service/kvd/cluster_writes.h"
#include "service/kvd/loads.h"
#include "service/kvd/outbox.h"
#include "service/kvd/write_through.h"

namespace penstock::service {

class Leases {
 public:
  static constexpr Duration kBudgetMax = std::chrono::minutes(1);  // larger ones are cut to it

  // `cluster` null: there is no cluster store.
  Leases(Holdings& holdings, Loads& loads, WriteThrough& writes, ClusterTier* cluster,
         ClusterWrites& cluster_writes, KvStatistics& statistics, AcquireRecords& records,
         kvcache::LoadModel& model)
      : holdings_(holdings),
        loads_(loads),
        writes_(writes),
        cluster_(cluster),
        cluster_writes_(cluster_writes),
        statistics_(statistics),
        records_(records),
        model_(model) {}

  bool contains(kv::SessionId session, kv::LeaseId lease) const {
    return leases_.contains({session, lease});
  }
  std::size_t open(kv::SessionId session) const;
  // Keys that the open leases have asked for.
  std::size_t keys_open() const { return keys_open_; }
  std::size_t open() const { return leases_.size(); }
  std::optional<Instant> next_deadline() const;

  // Precondition: !contains(session, request.lease); the windows are ascending. `layout` of its
  // root; without slices: not known.
  void acquire(kv::SessionId session, kv::Acquire request, const KvLayoutSpec& layout, TierNow now);
  // Takes what the cluster store has answered since.
  void looked_up(TierNow now);
  // Unknown ones are ignored.
  void release(kv::SessionId session, kv::LeaseId lease, TierNow now, Outbox& outbox);
  // The pinned block of that name, if the lease holds it.
  std::optional<HostBlock> holds(kv::SessionId session, kv::LeaseId lease,
                                 const BlockName& name) const;
  // Ends all waiting of this session; its pins stay.
  void end_waiting(kv::SessionId session, TierNow now, Outbox& outbox);
  // Drops everything of this session, without a word.
  void close(kv::SessionId session);
  // Bytes of the places this session has pinned, each counted once.
  std::uint64_t pinned_bytes(kv::SessionId session) const;

  void loaded(const std::vector<LoadEnded>& ended, TierNow now);
  // Sends what has changed in this turn, ends what is over.
  void flush(TierNow now, Outbox& outbox);

 private:
  using Key = std::pair<kv::SessionId, kv::LeaseId>;
  enum class Have : std::uint8_t { kBelow, kLoading, kReady, kGone };
  struct Part {
    Have have = Have::kBelow;
    KvTier from = KvTier::kHost;
    HostBlock block;  // when kLoading or kReady
  };
  struct Window {
    std::uint32_t depth = 0;
    Part part;
    bool granted = false;
  };
  struct Lease {
    kv::Acquire request;
    std::uint32_t block_tokens = 0;
    Instant deadline;
    std::vector<Part> history;  // the prefix that may be reached
    std::size_t started = 0;    // of it, those before are not kBelow
    std::size_t granted = 0;    // of it, sent; all of these are ready
    std::vector<Window> windows;
    MissReason missing = MissReason::kNone;  // of block history.size()
    Instant began;
    std::optional<kvcache::LoadDecision> decision;  // when there was something to decide
    bool in_line = false;                           // stands in line_
    bool looks_up = false;                          // the cluster store has been asked
    bool is_final = false;
  };

  using Answers = std::vector<std::pair<Key, MissReason>>;  // outlives the object, for the tier

  // Goes on along the chain as far as blocks are held.
  void walk(const Key& key, Lease& lease);
  // Chooses and starts what is to be loaded of what was found.
  void plan(const Key& key, Lease& lease, TierNow now);
  BlockInfo info_of(const Lease& lease, std::size_t depth, KvGroup group) const;
  // Pins the block or waits for it, where it is in memory; kGone when it can't be had. `index` is
  // that of the part in its lease.
  Part look(const Key& key, const BlockInfo& info, std::size_t index);
  // Leaves out the end of the prefix that takes longer to load than to compute.
  void decide(Lease& lease, Instant now);
  // Of a lease, as far as it was asked for, and one more.
  static Tokens prompt_of(const Lease& lease);
  void choose_windows(const Key& key, Lease& lease);
  // Starts loads in order; stands in line when there are too many.
  void start_loads(const Key& key, Lease& lease, TierNow now);
  // Loads a part that is on disk; kNone, or why it can't be had. Precondition: Loads has room.
  MissReason start_load(const Key& key, const BlockInfo& info, std::size_t index, Part& part,
                        TierNow now);
  // The prefix ends before `depth`.
  void cut(Lease& lease, std::size_t depth, MissReason reason);
  // Ends the waiting with what was granted before.
  void stop(const Key& key, Lease& lease, TierNow now, Outbox& outbox);
  void let_go(Part& part);
  void advance(const Key& key, Lease& lease, TierNow now, Outbox& outbox);
  void finish(const Key& key, Lease& lease, TierNow now);
  kv::PinnedBlock pinned(const Part& part) const;
  std::map<Key, Lease>::iterator erase(std::map<Key, Lease>::iterator lease);

  Holdings& holdings_;
  Loads& loads_;
  WriteThrough& writes_;
  ClusterTier* cluster_;
  ClusterWrites& cluster_writes_;
  std::shared_ptr<Answers> answers_ = std::make_shared<Answers>();
  KvStatistics& statistics_;
  AcquireRecords& records_;
  kvcache::LoadModel& model_;
  std::map<Key, Lease> leases_;
  std::size_t keys_open_ = 0;
  std::map<kv::SessionId, std::size_t> open_;    // leases by session, where there are any
  std::set<std::pair<Instant, Key>> deadlines_;  // of those not final
  std::set<Key> changed_;
  std::deque<Key> line_;  // waiting for Loads to have room
};

}  // namespace penstock::service
