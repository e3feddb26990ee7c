#include "sim/hit_loads.h"

#include <algorithm>

namespace penstock::sim {
namespace {

double seconds_until(Instant then, Instant now) {
  return then > now ? routing::to_seconds(then - now) : 0;
}

}  // namespace

HitLoads::HitLoads(const routing::Profile& profile, std::int64_t block_tokens, std::size_t zones,
                   bool through_decode, const std::vector<bool>& decode_usable)
    : profile_(profile),
      block_tokens_(block_tokens),
      host_ranks_(static_cast<std::size_t>(profile.prefill_pool.host_ranks)),
      decode_host_ranks_(static_cast<std::size_t>(profile.decode_pool.host_ranks)),
      through_decode_(through_decode),
      decode_usable_(decode_usable),
      costs_(profile.costs) {
  const auto zone_of = [zones](const routing::PoolProfile& pool, std::size_t host) {
    return static_cast<std::uint16_t>(host * static_cast<std::size_t>(pool.host_ranks) /
                                      static_cast<std::size_t>(pool.group_ranks) % zones);
  };
  const routing::PoolProfile& prefill = profile.prefill_pool;
  own_free_.resize(static_cast<std::size_t>(prefill.ranks / prefill.host_ranks));
  for (std::size_t host = 0; host < own_free_.size(); ++host)
    own_zones_.push_back(zone_of(prefill, host));
  const routing::PoolProfile& decode = profile.decode_pool;
  decode_free_.resize(static_cast<std::size_t>(decode.ranks / decode.host_ranks));
  for (std::size_t host = 0; host < decode_free_.size(); ++host) {
    decode_engines_.push_back(host * static_cast<std::size_t>(decode.host_ranks) /
                              static_cast<std::size_t>(decode.group_ranks));
    decode_links_.push_back({.zone = zone_of(decode, host)});
  }
}

HitLoads::Hit HitLoads::hit(const TierHit& found, std::int64_t tokens) const {
  Hit hit;
  hit.store = load_seconds(profile_, block_tokens_, found, tokens);
  const auto here = static_cast<std::int64_t>(found.blocks[0] + found.blocks[1]) * block_tokens_;
  if (here > 0) {
    hit.own = load_seconds(profile_, block_tokens_, found, std::min(here, tokens));
    hit.store -= hit.own;
  }
  hit.store_bytes = Bytes(std::max<std::int64_t>(tokens - here, 0) * profile_.kv_bytes_per_token);
  return hit;
}

routing::LoadPath HitLoads::store_path(std::size_t host, const Hit& hit, Instant now) {
  for (std::size_t i = 0; i < decode_links_.size(); ++i) {
    decode_links_[i].queue_seconds = seconds_until(decode_free_[i], now);
    decode_links_[i].usable = decode_usable_[decode_engines_[i]];
  }
  return routing::choose_load_path(
      hit.store_bytes, KvTier::kCluster,
      {.zone = own_zones_[host], .queue_seconds = seconds_until(own_free_[host], now) + hit.own},
      decode_links_, costs_, {});
}

double HitLoads::wait(std::size_t host, const Hit& hit, Instant now) {
  if (host >= own_free_.size()) return seconds_until(decode_free_[host - own_free_.size()], now);
  const double queue = seconds_until(own_free_[host], now);
  if (!through_decode_ || queue <= 0 || hit.store_bytes.value <= 0) return queue;
  const routing::LoadPath path = store_path(host, hit, now);
  if (!path.through) return queue;
  return std::max(path.arrives_seconds, hit.own > 0 ? queue + hit.own : 0) - hit.seconds();
}

bool HitLoads::take(std::size_t host, const Hit& hit, Instant now, Instant& arrives) {
  if (host >= own_free_.size()) {
    Instant& link = decode_free_[host - own_free_.size()];
    arrives = link = std::max(link, now) + routing::to_duration(hit.seconds());
    return false;
  }
  Instant& own = own_free_[host];
  if (through_decode_ && own > now && hit.store_bytes.value > 0) {
    const routing::LoadPath path = store_path(host, hit, now);
    if (path.through) {
      Instant& link = decode_free_[*path.through];
      link = std::max(link, now) + routing::to_duration(path.link_seconds);
      arrives = now + routing::to_duration(path.arrives_seconds);
      if (hit.own > 0) {
        own += routing::to_duration(hit.own);
        arrives = std::max(arrives, own);
      }
      return true;
    }
  }
  own = std::max(own, now) + routing::to_duration(hit.seconds());
  arrives = own;
  return false;
}

}  // namespace penstock::sim
