// Stores: blocks that workers have offered, copied into the arena one per turn.
//
// A block is copied from the worker's pool, its checksums are taken from the copy, and it is sealed
// and offered to the disk and to the cluster store. Sessions take turns; within one, blocks keep
// their order, so ancestors come first. Each block is answered by itself: kNone when it is in the
// arena (or on its way there from disk), else why it is not kept: kOtherBuild (the pool is not laid
// out as the root was registered; nothing of the request is looked at), kParentGone (the block
// before it is nowhere, or it contradicts what is held of its chain), kEvictedHost (no room),
// kIoError (its slices are not within the pool, or the pool is gone), kTooSlow (too many blocks
// wait already; nothing of the request is looked at).
//
// Invariants: nothing of a pool is read outside what was registered; a copy whose pool went away
// meanwhile is never sealed; a place is written in a later turn than the evictions that made it.
// Concurrency: one thread. Source: docs/design/0005-kv-cache.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "service/kvd/cluster_writes.h"
#include "service/kvd/outbox.h"
#include "service/kvd/write_through.h"

namespace penstock::service {

struct RegisteredPool {
  std::uint64_t bytes = 0;
  KvLayoutSpec layout;
};

class Stores {
 public:
  Stores(KvMemory& memory, Holdings& holdings, WriteThrough& writes, ClusterWrites& cluster_writes,
         KvStatistics& statistics, std::size_t pending_max)
      : memory_(memory),
        holdings_(holdings),
        writes_(writes),
        cluster_writes_(cluster_writes),
        statistics_(statistics),
        pending_max_(pending_max) {}

  // `pool` lives until close(session); null: the session has none of that number. `root_layout` is
  // that of the chain's root; null: it was not registered.
  void add(kv::SessionId session, kv::Store request, const RegisteredPool* pool,
           const KvLayoutSpec* root_layout, Outbox& outbox);
  bool has_work() const { return !queues_.empty(); }
  std::size_t pending() const { return pending_; }  // blocks
  // Copies at most one block.
  void work(TierNow now, Outbox& outbox);
  void close(kv::SessionId session);

 private:
  static constexpr int kLooksPerTurn = 64;  // at blocks that need no copy

  struct Job {
    kv::Store request;
    const RegisteredPool* pool = nullptr;
    std::vector<MissReason> results;  // of the blocks done
  };
  enum class Step : std::uint8_t { kAnswered, kCopied, kRoomMade };

  Step take(kv::SessionId session, Job& job, TierNow now);
  MissReason refuse(const Job& job, const BlockInfo& info, const kv::StoreBlock& block) const;
  MissReason copy(kv::SessionId session, const Job& job, const BlockInfo& info,
                  const kv::StoreBlock& block, TierNow now);

  KvMemory& memory_;
  Holdings& holdings_;
  WriteThrough& writes_;
  ClusterWrites& cluster_writes_;
  KvStatistics& statistics_;
  std::size_t pending_max_;
  std::size_t pending_ = 0;
  std::map<kv::SessionId, std::deque<Job>> queues_;
  kv::SessionId last_;  // whose turn it was
};

}  // namespace penstock::service
