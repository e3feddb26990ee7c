#include "sim/tiered_cache.h"

#include <algorithm>
#include <utility>

namespace penstock::sim {
namespace {

constexpr std::size_t kHost = 0;
constexpr std::size_t kStore = 2;

}  // namespace

TieredCache::TieredCache(const std::array<CacheTier, kCacheTiers.size()>& tiers,
                         std::size_t engines)
    : tiers_(tiers), views_(tiers[0].blocks > 0 || tiers[1].blocks > 0 ? engines : 1) {
  for (std::size_t tier = 0; tier < kStore; ++tier)
    for (std::size_t view = 0; view < views_; ++view)
      caches_.emplace_back(
          tiers[tier].blocks >= kUnlimitedBlocks ? kUnlimitedBlocks : tiers[tier].blocks / views_,
          tiers[tier].ttl);
  caches_.emplace_back(tiers[kStore].blocks, tiers[kStore].ttl);
}

std::optional<std::size_t> TieredCache::cache_of(std::size_t tier, std::size_t view) const {
  if (tiers_[tier].blocks == 0) return std::nullopt;
  return tier == kStore ? caches_.size() - 1 : tier * views_ + view % views_;
}

TierHit TieredCache::peek(std::size_t view, std::span<const std::uint64_t> blocks,
                          Instant now) const {
  TierHit hit;
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    const auto cache = cache_of(tier, view);
    if (!cache) continue;
    hit.blocks[tier] = caches_[*cache].peek(blocks, now);
    blocks = blocks.subspan(hit.blocks[tier]);
  }
  return hit;
}

TierHit TieredCache::match(std::size_t view, std::span<const std::uint64_t> blocks, Instant now) {
  TierHit hit;
  if (tiers_[0].blocks == 0 && tiers_[1].blocks == 0) {  // only the store
    if (const auto cache = cache_of(kStore, view))
      hit.blocks[kStore] = caches_[*cache].match(blocks, now);
    return hit;
  }
  hit = peek(view, blocks, now);
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier)
    if (const auto cache = cache_of(tier, view)) caches_[*cache].match(blocks, now);
  return hit;
}

void TieredCache::insert(std::size_t view, std::span<const std::uint64_t> blocks, Instant now) {
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier)
    if (const auto cache = cache_of(tier, view)) caches_[*cache].insert(blocks, now);
}

std::size_t TieredCache::size(std::size_t tier) const {
  std::size_t blocks = 0;
  for (std::size_t view = 0; view < (tier == kStore ? 1 : views_); ++view)
    if (const auto cache = cache_of(tier, view)) blocks += caches_[*cache].size();
  return blocks;
}

void TieredCache::lose(std::size_t view) {
  if (const auto cache = cache_of(kHost, view))
    caches_[*cache] = BlockCache(
        tiers_[kHost].blocks >= kUnlimitedBlocks ? kUnlimitedBlocks : tiers_[kHost].blocks / views_,
        tiers_[kHost].ttl);
}

double load_seconds(const routing::Profile& profile, std::int64_t block_tokens,
                    const TierHit& found, std::int64_t hit_tokens) {
  double seconds = 0;
  for (std::size_t tier = 0; tier < kCacheTiers.size(); ++tier) {
    const std::int64_t tokens =
        std::min(hit_tokens, static_cast<std::int64_t>(found.blocks[tier]) * block_tokens);
    hit_tokens -= tokens;
    const routing::FlowCoefficients& flow =
        profile.costs.load[std::to_underlying(kCacheTiers[tier])];
    if (tokens > 0 && flow.bytes_per_second > 0)
      seconds += flow.latency +
                 static_cast<double>(tokens * profile.kv_bytes_per_token) / flow.bytes_per_second;
  }
  return seconds;
}

}  // namespace penstock::sim
