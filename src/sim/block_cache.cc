#include "sim/block_cache.h"

#include <algorithm>

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

void BlockCache::use(std::uint32_t at, Instant now) {
  unlink(at);
  link_newest(at);
  entries_[at].used = now;
}

void BlockCache::evict_oldest() {
  const std::uint32_t at = oldest_;
  unlink(at);
  slots_[entries_[at].block] = kNone;
  --count_;
  free_.push_back(at);
}

std::size_t BlockCache::match(std::span<const std::uint64_t> blocks, Instant now) {
  while (oldest_ != kNone && now - entries_[oldest_].used > ttl_)
    evict_oldest();
  const std::size_t hit = peek(blocks, now);
  for (std::size_t i = forgets_ ? hit : 0; i-- > 0;)
    use(find(blocks[i]), now);
  return hit;
}

std::size_t BlockCache::peek(std::span<const std::uint64_t> blocks, Instant now) const {
  std::size_t hit = 0;
  if (!forgets_) {
    while (hit < blocks.size() && blocks[hit] < given_.size() && given_[blocks[hit]])
      ++hit;
    return hit;
  }
  for (; hit < blocks.size(); ++hit) {
    const std::uint32_t at = find(blocks[hit]);
    if (at == kNone || now - entries_[at].used > ttl_) break;
  }
  return hit;
}

void BlockCache::remember(std::span<const std::uint64_t> blocks) {
  for (const std::uint64_t block : blocks) {
    if (block >= given_.size()) given_.resize(std::max<std::size_t>(block + 1, 2 * given_.size()));
    count_ += given_[block] ? 0 : 1;
    given_[block] = true;
  }
}

void BlockCache::insert(std::span<const std::uint64_t> blocks, Instant now) {
  if (capacity_ == 0) return;
  if (!forgets_) return remember(blocks);
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
    if (block >= slots_.size())
      slots_.resize(std::max<std::size_t>(block + 1, 2 * slots_.size()), kNone);
    slots_[block] = at;
    ++count_;
  }
}

}  // namespace penstock::sim
