// KvStatistics: what the daemon counts, for `kv stat` and the metrics.
//
// Totals of the whole daemon, and use by (TTL class, tenant): at most kTenantsMax pairs, later ones
// share the row of tenant 0 of their class.
//
// Units and shapes: counts since start, except what is held now. Concurrency: one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "base/units.h"
#include "domain/kv.h"

namespace penstock::service {

using ReasonCounts = std::array<std::uint64_t, kMissReasons>;

inline std::uint64_t& at(ReasonCounts& counts, MissReason reason) {
  return counts[static_cast<std::size_t>(reason)];
}

// Blocks served, by the tier they were found in.
struct TierHits {
  std::uint64_t host = 0, disk = 0, peer = 0, cluster = 0;
  std::uint64_t& of(KvTier tier) {
    return tier == KvTier::kHost      ? host
           : tier == KvTier::kPeer    ? peer
           : tier == KvTier::kCluster ? cluster
                                      : disk;
  }
};

// What left a tier, why, and how long it had not been used when its place was needed.
struct Removals {
  ReasonCounts by_reason{};
  std::uint64_t evicted = 0;
  Duration idle_sum{};  // of the evicted
  Duration idle_max{};

  void add(MissReason reason, Duration idle) {
    ++at(by_reason, reason);
    if (reason != MissReason::kEvictedHost && reason != MissReason::kEvictedShare) return;
    ++evicted;
    idle_sum += idle;
    idle_max = std::max(idle_max, idle);
  }
};

struct TenantUse {
  std::uint64_t host_blocks = 0;  // held now
  std::uint64_t host_bytes = 0;
  Removals host_removals;
  ReasonCounts disk_removals{};
  std::uint64_t written_blocks = 0;  // to the disk
  std::uint64_t written_bytes = 0;
  std::uint64_t stored_blocks = 0;
  TierHits hits;
  std::uint64_t hit_tokens = 0;
  std::uint64_t miss_blocks = 0;
};

struct KvStatistics {
  static constexpr std::size_t kTenantsMax = 1024;

  std::uint64_t acquires = 0;
  std::uint64_t leases_ended = 0;
  std::uint64_t acquires_over_limit = 0;  // refused: too many leases, or too many keys of them
  TierHits hits;
  std::uint64_t hit_windows = 0, hit_tokens = 0;
  ReasonCounts misses{};  // of leases, by the reason their prefix ended; kNone: all were served

  std::uint64_t loads = 0, load_bytes = 0;
  ReasonCounts loads_ended{};  // kNone: sealed

  std::uint64_t stored_blocks = 0, stored_bytes = 0, stored_already = 0;
  ReasonCounts stores_refused{};
  std::uint64_t stores_other_layout =
      0;                             // blocks refused: their pool is not laid out as their root
  std::uint64_t roots_replaced = 0;  // names of chains forgotten for newer ones
  std::uint64_t stores_dropped = 0;  // their session ended first

  ReasonCounts writes_ended{};       // kNone: durable
  std::uint64_t writes_dropped = 0;  // evicted before their turn, or too many waited

  Removals host_removals;
  ReasonCounts disk_removals{};

  std::uint64_t reports = 0, reports_confirmed = 0;
  std::uint64_t reports_by_peers = 0;  // of reports
  std::uint64_t sessions_quarantined = 0, sessions_killed = 0, sessions_refused = 0;

  TenantUse& of(TtlClass ttl_class, std::uint64_t tenant) {
    return row(tenants, ttl_class, tenant);
  }
  template <typename Row>
  using ByTenant = std::map<std::pair<TtlClass, std::uint64_t>, Row>;
  template <typename Row>
  static Row& row(ByTenant<Row>& rows, TtlClass ttl_class, std::uint64_t tenant) {
    const auto found = rows.find({ttl_class, tenant});
    if (found != rows.end()) return found->second;
    return rows[{ttl_class, rows.size() < kTenantsMax ? tenant : 0}];
  }
  ByTenant<TenantUse> tenants;
};

}  // namespace penstock::service
