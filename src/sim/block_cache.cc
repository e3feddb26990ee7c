#include "sim/block_cache.h"

namespace penstock::sim {

std::uint32_t BlockCache::find(std::uint64_t block) const {
  if (slots_.empty()) return kNone;
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash(block) & mask; slots_[at] != kNone; at = (at + 1) & mask)
    if (entries_[slots_[at]].block == block) return slots_[at];
  return kNone;
}

void BlockCache::grow() {
  const std::vector<std::uint32_t> old = std::move(slots_);
  slots_.assign(old.empty() ? 1024 : 2 * old.size(), kNone);
  const std::size_t mask = slots_.size() - 1;
  for (const std::uint32_t entry : old) {
    if (entry == kNone) continue;
    std::size_t at = hash(entries_[entry].block) & mask;
    while (slots_[at] != kNone)
      at = (at + 1) & mask;
    slots_[at] = entry;
  }
}

void BlockCache::add(std::uint64_t block, std::uint32_t entry) {
  if (2 * (count_ + 1) > slots_.size()) grow();
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash(block) & mask;
  while (slots_[at] != kNone)
    at = (at + 1) & mask;
  slots_[at] = entry;
  ++count_;
}

void BlockCache::erase(std::uint64_t block) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t hole = hash(block) & mask;
  while (entries_[slots_[hole]].block != block)
    hole = (hole + 1) & mask;
  // Whoever was pushed past the hole moves into it.
  for (std::size_t at = (hole + 1) & mask; slots_[at] != kNone; at = (at + 1) & mask) {
    const std::size_t home = hash(entries_[slots_[at]].block) & mask;
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole] = kNone;
  --count_;
}

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

void BlockCache::use(std::uint32_t at, Instant now) {
  unlink(at);
  link_newest(at);
  entries_[at].used = now;
}

void BlockCache::evict_oldest() {
  const std::uint32_t at = oldest_;
  unlink(at);
  erase(entries_[at].block);
  free_.push_back(at);
}

std::size_t BlockCache::match(std::span<const std::uint64_t> blocks, Instant now) {
  while (oldest_ != kNone && now - entries_[oldest_].used > ttl_)
    evict_oldest();
  const std::size_t hit = peek(blocks, now);
  for (std::size_t i = hit; i-- > 0;)
    use(find(blocks[i]), now);
  return hit;
}

std::size_t BlockCache::peek(std::span<const std::uint64_t> blocks, Instant now) const {
  std::size_t hit = 0;
  for (; hit < blocks.size(); ++hit) {
    const std::uint32_t at = find(blocks[hit]);
    if (at == kNone || now - entries_[at].used > ttl_) break;
  }
  return hit;
}

void BlockCache::insert(std::span<const std::uint64_t> blocks, Instant now) {
  if (capacity_ == 0) return;
  for (std::size_t i = blocks.size(); i-- > 0;) {
    const std::uint64_t block = blocks[i];
    if (const std::uint32_t found = find(block); found != kNone) {
      use(found, now);
      continue;
    }
    if (count_ >= capacity_) evict_oldest();
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
    add(block, at);
  }
}

}  // namespace penstock::sim
