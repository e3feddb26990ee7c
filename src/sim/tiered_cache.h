// The cluster's KV cache as its prefill engines find it: each engine's host memory and disk, and
// the store that all share.
//
// Of a prompt's leading blocks as many as it has come from host memory, the next from disk, the
// rest from the store. What is computed is written to all tiers; a use counts in all that hold the
// block. Tiers evict by themselves (sim/block_cache.h).
//
// Units: blocks; capacities are of all engines together. Concurrency: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/routing/profile.h"
#include "sim/block_cache.h"

namespace penstock::sim {

inline constexpr std::array kCacheTiers = {KvTier::kHost, KvTier::kDisk, KvTier::kCluster};

struct CacheTier {
  std::size_t blocks = 0;  // 0: there is none
  Duration ttl = std::chrono::hours(24 * 3);
};

struct TierHit {
  std::array<std::size_t, kCacheTiers.size()> blocks{};  // by kCacheTiers
  std::size_t total() const { return blocks[0] + blocks[1] + blocks[2]; }
};

class TieredCache {
 public:
  TieredCache(const std::array<CacheTier, kCacheTiers.size()>& tiers, std::size_t engines);

  // Kinds of engines that may find different things: all, or one when only the store is there.
  std::size_t views() const { return views_; }
  // The view is an engine, modulo views().
  TierHit peek(std::size_t view, std::span<const std::uint64_t> blocks, Instant now) const;
  TierHit match(std::size_t view, std::span<const std::uint64_t> blocks, Instant now);
  void insert(std::size_t view, std::span<const std::uint64_t> blocks, Instant now);
  std::size_t size(std::size_t tier) const;  // blocks, of all engines together
  // Its host memory is gone; its disk is not.
  void lose(std::size_t view);

 private:
  std::optional<std::size_t> cache_of(std::size_t tier, std::size_t view) const;

  std::array<CacheTier, kCacheTiers.size()> tiers_;
  std::size_t views_ = 1;
  std::vector<BlockCache> caches_;  // [tiers, views]; of the store one
};

// What reading so many tokens of it takes, each tier's part one after the other.
double load_seconds(const routing::Profile& profile, std::int64_t block_tokens,
                    const TierHit& found, std::int64_t hit_tokens);

}  // namespace penstock::sim
