#include "service/kvd/cluster_writes.h"

#include <algorithm>
#include <optional>

namespace penstock::service {
namespace {

constexpr std::size_t kSinglesPerTurn = 8;
constexpr std::size_t kCoveredMax = std::size_t{1} << 16;

}  // namespace

std::uint32_t ClusterWrites::per_extent(HostBlock block) const {
  return kvcache::extent_blocks(holdings_.host().at(block).bytes);
}

template <typename Queue>
void ClusterWrites::bound(Queue& queue) {
  if (queue.size() <= kQueuedMax) return;
  queue.pop_front();
  ++numbers_->dropped;
}

void ClusterWrites::offer(HostBlock block, Instant now) {
  if (tier_ == nullptr) return;
  const BlockInfo& info = holdings_.host().at(block).info;
  if (!tier_->is_written(info.ttl_class)) return;
  if (info.name.group == KvGroup::kHistory && (info.depth + 1) % per_extent(block) == 0) {
    full_.push_back(block);
    bound(full_);
  } else {
    tails_.emplace_back(now + tail_delay_, block);
    bound(tails_);
  }
}

void ClusterWrites::used(std::span<const BlockName> path, TtlClass ttl_class, TierNow now) {
  if (tier_ == nullptr || path.empty()) return;
  const auto first = holdings_.find_sealed(path.front());
  if (!first) return;
  const std::uint32_t count = per_extent(*first);
  for (std::size_t i = 0; i < path.size(); ++i) {
    const BlockName& name = path[i];
    const bool ends_extent = name.group == KvGroup::kHistory && (i + 1) % count == 0;
    // Single blocks: only those that are known to be there; the rest of a chain is soon in extents.
    const bool is_single = !ends_extent && tier_->contains(name) && !covered_.contains(name) &&
                           (name.group == KvGroup::kWindow || i >= path.size() / count * count);
    if (!ends_extent && !is_single) continue;
    const StoreName object =
        ends_extent ? ClusterTier::extent_object(name, count) : ClusterTier::single_object(name);
    if (tier_->noted(object)) continue;
    const auto held = holdings_.find_sealed(name);
    tier_->touch_object(object, ttl_class, now,
                        [this, held, at = now.now, is = std::weak_ptr(numbers_)](MissReason why) {
                          if (is.expired() || why != MissReason::kNeverStored || !held) return;
                          if (holdings_.host().valid(*held) && holdings_.host().sealed(*held))
                            offer(*held, at);
                        });
  }
}

bool ClusterWrites::has_work(Instant now) const {
  if (tier_ == nullptr || !tier_->may_write(0)) return false;
  return !full_.empty() || (!tails_.empty() && (hurried_ || tails_.front().first <= now));
}

void ClusterWrites::work(TierNow now) {
  if (!has_work(now.now)) return;
  HostTier& host = holdings_.host();
  if (!full_.empty()) {
    const HostBlock last = full_.front();
    if (!host.valid(last) || !host.sealed(last)) {
      full_.pop_front();
      ++numbers_->gone;
    } else if (tier_->may_write(host.at(last).bytes * per_extent(last))) {
      full_.pop_front();
      write_extent(last);
    }
    return;
  }
  for (std::size_t i = 0; i < kSinglesPerTurn && has_work(now.now); ++i) {
    const HostBlock block = tails_.front().second;
    if (host.valid(block) && host.sealed(block)) {
      if (!tier_->may_write(host.at(block).bytes)) return;
      write_single(block);
    } else {
      ++numbers_->gone;
    }
    tails_.pop_front();
  }
}

void ClusterWrites::write_extent(HostBlock last) {
  HostTier& host = holdings_.host();
  const std::uint32_t count = per_extent(last);
  const StoreName object = ClusterTier::extent_object(host.at(last).info.name, count);
  if (tier_->noted(object)) return;
  std::vector<HostBlock> blocks{last};
  while (blocks.size() < count) {
    const auto parent = HostTier::parent_of(host.at(blocks.back()).info);
    const auto before = parent ? holdings_.find_sealed(*parent) : std::nullopt;
    if (!before) {
      ++numbers_->gone;
      return;
    }
    blocks.push_back(*before);
  }
  std::ranges::reverse(blocks);
  std::vector<BlockInfo> infos;
  std::vector<std::span<const std::byte>> payloads;
  std::uint64_t bytes = 0;
  for (const HostBlock block : blocks) {
    infos.push_back(host.at(block).info);
    payloads.push_back(holdings_.bytes(block));
    bytes += host.at(block).bytes;
    if (covered_.insert(infos.back().name).second) covered_order_.push_back(infos.back().name);
  }
  while (covered_order_.size() > kCoveredMax) {
    covered_.erase(covered_order_.front());
    covered_order_.pop_front();
  }
  ++under_way_;
  tier_->write_extent(infos, payloads,
                      [this, bytes, count, numbers = std::weak_ptr(numbers_)](MissReason reason) {
                        if (numbers.expired()) return;
                        --under_way_;
                        ++at(numbers_->ended, reason);
                        if (reason != MissReason::kNone) return;
                        numbers_->blocks += count;
                        numbers_->bytes += bytes;
                      });
}

void ClusterWrites::write_single(HostBlock block) {
  const BlockInfo& info = holdings_.host().at(block).info;
  if (covered_.contains(info.name) || tier_->noted(ClusterTier::single_object(info.name))) return;
  const std::uint64_t bytes = holdings_.host().at(block).bytes;
  ++under_way_;
  tier_->write({info, holdings_.bytes(block),
                [this, bytes, numbers = std::weak_ptr(numbers_)](MissReason reason) {
                  if (numbers.expired()) return;
                  --under_way_;
                  ++at(numbers_->ended, reason);
                  if (reason != MissReason::kNone) return;
                  ++numbers_->blocks;
                  numbers_->bytes += bytes;
                }});
}

}  // namespace penstock::service
