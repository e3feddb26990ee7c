#include "service/kvd/cluster_writes.h"

#include <algorithm>
#include <optional>

namespace penstock::service {
namespace {

constexpr std::size_t kSinglesPerTurn = 8;
constexpr std::size_t kCoveredMax = std::size_t{1} << 16;

}  // namespace

ClusterWrites::ClusterWrites(Holdings& holdings, WriteThrough& writes, ClusterTier* tier,
                             Duration tail_delay)
    : holdings_(holdings),
      tier_(tier),
      tail_delay_(tail_delay),
      spill_(holdings, writes, tier, kSpillShareMax,
             [this](std::uint64_t blocks, std::uint64_t bytes) {
               numbers_->blocks += blocks;
               numbers_->bytes += bytes;
             }) {}

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
    tails_.push_back({now + tail_delay_, block});
    bound(tails_);
  }
}

void ClusterWrites::used(std::span<const BlockName> path, TtlClass ttl_class, TierNow now) {
  if (tier_ == nullptr || path.empty()) return;
  const auto first = holdings_.find_sealed(path.front());
  if (!first) return;
  const std::uint32_t count = per_extent(*first);
  const auto chain_end = std::ranges::find(path, KvGroup::kWindow, &BlockName::group);
  const auto depth = static_cast<std::size_t>(chain_end - path.begin());
  if (depth > 0 && depth % count != 0 && tier_->is_written(ttl_class)) {
    const auto last = holdings_.find_sealed(path[depth - 1]);
    if (last && goes_on(*last))
      offer_shared(path.subspan(depth / count * count, depth % count), now.now);
  }
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

bool ClusterWrites::goes_on(HostBlock block) const {
  const HostEntry& entry = holdings_.host().at(block);
  const bool has_window =
      holdings_.host().find({entry.info.name.key, KvGroup::kWindow}).has_value();
  return entry.children > (has_window ? 1U : 0U);
}

void ClusterWrites::offer_shared(std::span<const BlockName> end, Instant now) {
  for (const BlockName& name : end) {
    const auto held = holdings_.find_sealed(name);
    if (!held || tier_->contains(name) || tier_->noted(ClusterTier::single_object(name))) continue;
    tails_.push_back({now + tail_delay_, *held, true});
    bound(tails_);
  }
}

std::uint64_t ClusterWrites::need(HostBlock block, std::uint32_t count) const {
  const HostTier& host = holdings_.host();
  return host.valid(block) && host.sealed(block) ? host.at(block).bytes * count : 0;
}

bool ClusterWrites::must_spill(std::uint64_t bytes) const {
  const bool is_behind = !tier_->may_write(0) || queued() > kBehind;
  return !tier_->may_write(bytes) && is_behind && bytes > 0 && spill_.accepts(bytes);
}

bool ClusterWrites::is_ready(std::uint64_t bytes) const {
  return tier_->may_write(bytes) || must_spill(bytes);
}

bool ClusterWrites::extent_is_ready() const {
  if (full_.empty()) return false;
  const HostBlock last = full_.front();
  const bool is_there = holdings_.host().valid(last) && holdings_.host().sealed(last);
  return is_ready(is_there ? need(last, per_extent(last)) : 0);
}

bool ClusterWrites::tail_is_ready(Instant now) const {
  return full_.empty() && !tails_.empty() && (hurried_ || tails_.front().due <= now) &&
         is_ready(need(tails_.front().block, 1));
}

bool ClusterWrites::has_work(Instant now) const {
  return tier_ != nullptr && (extent_is_ready() || tail_is_ready(now) || spill_.has_work());
}

void ClusterWrites::work(TierNow now) {
  if (tier_ == nullptr) return;
  spill_.work();
  if (extent_is_ready()) {
    const HostBlock last = full_.front();
    full_.pop_front();
    if (holdings_.host().valid(last) && holdings_.host().sealed(last)) {
      write_extent(last);
    } else {
      ++numbers_->gone;
    }
    return;
  }
  for (std::size_t i = 0; i < kSinglesPerTurn && tail_is_ready(now.now); ++i) {
    const Tail tail = tails_.front();
    tails_.pop_front();
    if (need(tail.block, 1) > 0) {
      write_single(tail);
    } else {
      ++numbers_->gone;
    }
  }
}

std::vector<HostBlock> ClusterWrites::extent_of(HostBlock last) {
  const HostTier& host = holdings_.host();
  std::vector<HostBlock> blocks{last};
  while (blocks.size() < per_extent(last)) {
    const auto parent = HostTier::parent_of(host.at(blocks.back()).info);
    const auto before = parent ? holdings_.find_sealed(*parent) : std::nullopt;
    if (!before) return {};
    blocks.push_back(*before);
  }
  std::ranges::reverse(blocks);
  return blocks;
}

void ClusterWrites::cover(const BlockName& name) {
  if (covered_.insert(name).second) covered_order_.push_back(name);
  if (covered_order_.size() <= kCoveredMax) return;
  covered_.erase(covered_order_.front());
  covered_order_.pop_front();
}

void ClusterWrites::write_extent(HostBlock last) {
  HostTier& host = holdings_.host();
  const std::uint32_t count = per_extent(last);
  if (tier_->noted(ClusterTier::extent_object(host.at(last).info.name, count))) return;
  const std::vector<HostBlock> blocks = extent_of(last);
  if (blocks.empty()) {
    ++numbers_->gone;
    return;
  }
  for (const HostBlock block : blocks)
    cover(host.at(block).info.name);
  if (must_spill(need(last, count))) return spill_.add(blocks);
  std::vector<BlockInfo> infos;
  std::vector<std::span<const std::byte>> payloads;
  std::uint64_t bytes = 0;
  for (const HostBlock block : blocks) {
    infos.push_back(host.at(block).info);
    payloads.push_back(holdings_.bytes(block));
    bytes += host.at(block).bytes;
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

void ClusterWrites::write_single(const Tail& tail) {
  const HostBlock block = tail.block;
  const BlockInfo& info = holdings_.host().at(block).info;
  if (covered_.contains(info.name) && !tail.is_shared) return;
  if (tier_->noted(ClusterTier::single_object(info.name))) return;
  const std::uint64_t bytes = holdings_.host().at(block).bytes;
  if (must_spill(bytes)) return spill_.add(std::span(&block, 1));
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
