// Holdings: what this host holds in memory and on disk, kept true in every place that tells of it,
// and the other hosts and the cluster store that may be asked.
//
// Each change of a tier passes through here, so that the event log, the statistics and the history
// of removals always agree with the host tier. A block that leaves memory and is on no lower tier
// takes what hangs under it along.
//
// Invariants: "stored" is told after the block is sealed, "removed" before its place is given to
// anyone. Concurrency: one thread. Source: docs/design/0005-kv-cache.md; facts 7d rule 6.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/kvcache/host_tier.h"
#include "core/kvcache/miss_history.h"
#include "domain/kv_messages.h"
#include "port/block_tier.h"
#include "service/kvd/event_log.h"
#include "service/kvd/statistics.h"

namespace penstock::service {

using kvcache::HostBlock;
using kvcache::HostEntry;
using kvcache::HostTier;

class Holdings {
 public:
  // Those of these tiers that there are; null: there is none.
  struct Below {
    BlockTier* disk = nullptr;
    BlockTier* peers = nullptr;
    BlockTier* cluster = nullptr;
  };
  Holdings(std::span<std::byte> arena, Below below, EventLog& log, KvStatistics& statistics,
           std::size_t history_max, double tenant_share_max);

  HostTier& host() { return host_; }
  const HostTier& host() const { return host_; }
  BlockTier* disk() { return disk_; }
  BlockTier* peers() { return peers_; }
  // kDisk, kPeer or kCluster; null when there is none.
  BlockTier* tier(KvTier tier) {
    return tier == KvTier::kPeer ? peers_ : tier == KvTier::kCluster ? cluster_ : disk_;
  }
  std::span<std::byte> bytes(HostBlock block);
  std::span<std::byte> place(HostBlock block);  // its bytes and the rest of the last unit
  std::span<std::byte> scratch(std::uint64_t offset, std::uint64_t bytes);  // of take_scratch()

  std::optional<HostBlock> find_sealed(const BlockName& name) const;
  bool on_disk(const BlockName& name) const { return disk_ != nullptr && disk_->contains(name); }
  // Begins to fetch from memory what below() will look at: some names ahead it hides its latency.
  static constexpr std::size_t kPrefetchAhead = 12;
  void prefetch(const BlockName& name) const {
    if (disk_ != nullptr) disk_->prefetch(name);
  }
  // The fastest tier below memory that has it: the disk, another host, the cluster store.
  std::optional<KvTier> below(const BlockName& name) const {
    if (on_disk(name)) return KvTier::kDisk;
    if (peers_ != nullptr && peers_->contains(name)) return KvTier::kPeer;
    if (cluster_ != nullptr && cluster_->contains(name)) return KvTier::kCluster;
    return std::nullopt;
  }
  // Why nobody holds it, as far as is known.
  MissReason why_missing(const BlockName& name) const;
  kvcache::MissHistory& history() { return history_; }

  // What had to go is told; true when `bytes` fit now.
  bool make_room(std::uint64_t bytes, TierNow now);
  // True when something was evicted since the last call: its place must not be written in this
  // turn.
  bool take_evicted() { return std::exchange(evicted_, false); }
  void seal(HostBlock block, std::vector<SliceSum> slices, TierNow now);
  void retire(HostBlock block, MissReason reason, TierNow now);
  // Compares a sealed block with its checksums; a copy that does not match is retired.
  bool check_copy(HostBlock block, TierNow now);

  void written_to_disk(const BlockName& name);
  void removed_from_disk(const TierRemoval& removal, TierNow now);
  // As far as this host knows.
  void in_cluster(const BlockName& name, bool is_there);
  // Retires blocks whose ancestors are nowhere; returns how many (with `dry_run`: would be).
  std::size_t drop_orphans(bool dry_run, TierNow now);

  // One step of a walk over all: see EventFeed::Snapshot.
  bool snapshot(SnapshotCursor& at, std::vector<kv::Event>& found) const;

 private:
  void tell(const kvcache::HostRemovals& removals, TierNow now);

  std::span<std::byte> arena_;
  BlockTier* disk_;
  BlockTier* peers_;
  BlockTier* cluster_;
  EventLog& log_;
  KvStatistics& statistics_;
  HostTier host_;
  bool evicted_ = false;
  kvcache::MissHistory history_;
};

}  // namespace penstock::service
