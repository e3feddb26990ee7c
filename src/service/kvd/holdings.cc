#include "service/kvd/holdings.h"

#include <algorithm>

#include "base/hash.h"

namespace penstock::service {

namespace {

// Why nobody holds a block that left memory: being kept out of the disk says more than that memory
// was needed.
MissReason cause(const kvcache::HostRemoval& removal) {
  const bool was_kept_out =
      removal.refused == MissReason::kNotAdmitted || removal.refused == MissReason::kEvictedShare;
  return removal.reason == MissReason::kEvictedHost && was_kept_out ? removal.refused
                                                                    : removal.reason;
}

}  // namespace

Holdings::Holdings(std::span<std::byte> arena, Below below, EventLog& log, KvStatistics& statistics,
                   std::size_t history_max, double tenant_share_max)
    : arena_(arena),
      disk_(below.disk),
      peers_(below.peers),
      cluster_(below.cluster),
      log_(log),
      statistics_(statistics),
      host_(arena.size(), tenant_share_max),
      history_({.names_max = history_max}) {}

std::span<std::byte> Holdings::bytes(HostBlock block) {
  const HostEntry& entry = host_.at(block);
  return arena_.subspan(entry.offset, entry.bytes);
}

std::span<std::byte> Holdings::place(HostBlock block) {
  const HostEntry& entry = host_.at(block);
  return scratch(entry.offset, entry.bytes);
}

std::span<std::byte> Holdings::scratch(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t units = (bytes + kvcache::kArenaUnit - 1) / kvcache::kArenaUnit;
  return arena_.subspan(offset, units * kvcache::kArenaUnit);
}

std::optional<HostBlock> Holdings::find_sealed(const BlockName& name) const {
  const auto found = host_.find(name);
  return found && host_.sealed(*found) ? found : std::nullopt;
}

MissReason Holdings::why_missing(const BlockName& name) const {
  const auto noted = history_.find(name);
  return noted ? noted->reason : MissReason::kNeverStored;
}

bool Holdings::make_room(std::uint64_t bytes, TierNow now) {
  kvcache::HostRemovals removals;
  const bool room = host_.make_room(bytes, now.now, removals);
  tell(removals, now);
  return room;
}

void Holdings::seal(HostBlock block, std::vector<SliceSum> slices, TierNow now) {
  host_.seal(block, std::move(slices), now.now);
  const HostEntry& entry = host_.at(block);
  TenantUse& use = statistics_.of(entry.info.ttl_class, entry.info.tenant);
  ++use.host_blocks;
  use.host_bytes += entry.bytes;
  history_.stored(entry.info.name);
  log_.add({entry.info.name, KvTier::kHost, true, MissReason::kNone});
}

void Holdings::retire(HostBlock block, MissReason reason, TierNow now) {
  kvcache::HostRemovals removals;
  host_.retire(block, reason, now.now, removals);
  tell(removals, now);
}

bool Holdings::check_copy(HostBlock block, TierNow now) {
  std::span<const std::byte> rest = bytes(block);
  for (const SliceSum& slice : host_.at(block).info.slices) {
    if (checksum64(rest.first(slice.bytes)) != slice.checksum) {
      retire(block, MissReason::kCorrupt, now);
      return false;
    }
    rest = rest.subspan(slice.bytes);
  }
  return true;
}

void Holdings::written_to_disk(const BlockName& name) {
  log_.add({name, KvTier::kDisk, true, MissReason::kNone});
}

void Holdings::removed_from_disk(const TierRemoval& removal, TierNow now) {
  log_.add({removal.name, KvTier::kDisk, false, removal.reason});
  ++at(statistics_.disk_removals, removal.reason);
  ++at(statistics_.of(removal.ttl_class, removal.tenant).disk_removals, removal.reason);
  if (on_disk(removal.name)) {  // an older copy went; a newer one was told of before
    written_to_disk(removal.name);
    return;
  }
  if (host_.find(removal.name)) return;
  history_.note(removal.name, removal.reason, now.wall);
  kvcache::HostRemovals removals;
  host_.retire_orphans(removal.name, now.now, removals);
  tell(removals, now);
}

void Holdings::in_cluster(const BlockName& name, bool is_there) {
  log_.add({name, KvTier::kCluster, is_there, is_there ? MissReason::kNone : MissReason::kExpired});
}

std::size_t Holdings::drop_orphans(bool dry_run, TierNow now) {
  std::size_t dropped = 0;
  for (const BlockName& name : host_.absent_parents()) {
    if (on_disk(name)) continue;
    if (dry_run) {
      ++dropped;
      continue;
    }
    kvcache::HostRemovals removals;
    host_.retire_orphans(name, now.now, removals);
    dropped += removals.size();
    tell(removals, now);
  }
  return dropped;
}

bool Holdings::snapshot(SnapshotCursor& at, std::vector<kv::Event>& found) const {
  if (at.slot < host_.slots()) {
    const std::size_t end = std::min(at.slot + kEventsPerMessage, host_.slots());
    for (; at.slot < end; ++at.slot)
      if (const auto block = host_.sealed_in_slot(at.slot))
        found.push_back({host_.at(*block).info.name, KvTier::kHost, true, MissReason::kNone});
    return at.slot == host_.slots() && disk_ == nullptr && cluster_ == nullptr;
  }
  const auto walk = [&](const BlockTier* tier, KvTier of, std::size_t& part) {
    if (tier == nullptr || part >= tier->parts()) return false;
    tier->for_each_in(part++, [&](const BlockName& name, std::uint32_t) {
      found.push_back({name, of, true, MissReason::kNone});
      return true;
    });
    return true;
  };
  if (walk(disk_, KvTier::kDisk, at.part)) return cluster_ == nullptr && at.part >= disk_->parts();
  return !walk(cluster_, KvTier::kCluster, at.cluster_part) || at.cluster_part >= cluster_->parts();
}

void Holdings::tell(const kvcache::HostRemovals& removals, TierNow now) {
  for (const kvcache::HostRemoval& removal : removals) {
    log_.add({removal.name, KvTier::kHost, false, removal.reason});
    statistics_.host_removals.add(removal.reason, removal.idle);
    TenantUse& use = statistics_.of(removal.ttl_class, removal.tenant);
    use.host_removals.add(removal.reason, removal.idle);
    --use.host_blocks;
    use.host_bytes -= removal.bytes;
    if (!on_disk(removal.name)) history_.note(removal.name, cause(removal), now.wall);
    evicted_ = true;
  }
}

}  // namespace penstock::service
