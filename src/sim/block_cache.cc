#include "sim/block_cache.h"

namespace penstock::sim {

void BlockCache::unlink(std::uint32_t at) {
  const Entry& entry = entries_[at];
  (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
  (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
}

void BlockCache::link_newest(std::uint32_t at) {
  entries_[at].newer = kNone;
  entries_[at].older = newest_;
  (newest_ == kNone ? oldest_ : entries_[newest_].newer) = at;
  newest_ = at;
}

void BlockCache::evict_oldest() {
  const std::uint32_t at = oldest_;
  unlink(at);
  index_.erase(entries_[at].block);
  free_.push_back(at);
}

std::size_t BlockCache::match(std::span<const std::uint64_t> blocks, Instant now) {
  while (oldest_ != kNone && now - entries_[oldest_].used > ttl_)
    evict_oldest();
  std::size_t hit = 0;
  for (; hit < blocks.size(); ++hit) {
    const auto found = index_.find(blocks[hit]);
    if (found == index_.end()) break;
    unlink(found->second);
    link_newest(found->second);
    entries_[found->second].used = now;
  }
  return hit;
}

std::size_t BlockCache::peek(std::span<const std::uint64_t> blocks, Instant now) const {
  std::size_t hit = 0;
  for (; hit < blocks.size(); ++hit) {
    const auto found = index_.find(blocks[hit]);
    if (found == index_.end() || now - entries_[found->second].used > ttl_) break;
  }
  return hit;
}

void BlockCache::insert(std::span<const std::uint64_t> blocks, Instant now) {
  if (capacity_ == 0) return;
  for (const std::uint64_t block : blocks) {
    if (const auto found = index_.find(block); found != index_.end()) {
      unlink(found->second);
      link_newest(found->second);
      entries_[found->second].used = now;
      continue;
    }
    if (index_.size() >= capacity_) evict_oldest();
    std::uint32_t at = 0;
    if (free_.empty()) {
      at = static_cast<std::uint32_t>(entries_.size());
      entries_.emplace_back();
    } else {
      at = free_.back();
      free_.pop_back();
    }
    entries_[at] = {block, now, kNone, kNone};
    link_newest(at);
    index_.emplace(block, at);
  }
}

}  // namespace penstock::sim
