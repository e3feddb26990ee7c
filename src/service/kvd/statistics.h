// KvStatistics: what the daemon counts, for `kv stat` and the metrics.
//
// Totals of the whole daemon, and use by (TTL class, tenant): at most kTenantsMax pairs, later ones
// share the row of tenant 0 of their class.
//
// Units and shapes: counts since start, except what is held now. Concurrency: one thread.
#pragma once

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

struct TenantUse {
  std::uint64_t host_blocks = 0;  // held now
  std::uint64_t host_bytes = 0;
  std::uint64_t stored_blocks = 0;
  std::uint64_t hit_blocks_host = 0;
  std::uint64_t hit_blocks_disk = 0;
  std::uint64_t hit_tokens = 0;
  std::uint64_t miss_blocks = 0;
};

struct KvStatistics {
  static constexpr std::size_t kTenantsMax = 1024;

  std::uint64_t acquires = 0;
  std::uint64_t leases_ended = 0;
  std::uint64_t hit_blocks_host = 0, hit_blocks_disk = 0, hit_windows = 0, hit_tokens = 0;
  ReasonCounts misses{};  // of leases, by the reason their prefix ended; kNone: all were served

  std::uint64_t loads = 0, load_bytes = 0;
  ReasonCounts loads_ended{};  // kNone: sealed

  std::uint64_t stored_blocks = 0, stored_bytes = 0, stored_already = 0;
  ReasonCounts stores_refused{};
  std::uint64_t stores_dropped = 0;  // their session ended first

  ReasonCounts writes_ended{};       // kNone: durable
  std::uint64_t writes_dropped = 0;  // evicted before their turn, or too many waited

  ReasonCounts host_removals{};
  ReasonCounts disk_removals{};
  Duration idle_when_evicted{};  // sum over kEvictedHost

  std::uint64_t reports = 0, reports_confirmed = 0;
  std::uint64_t sessions_quarantined = 0, sessions_killed = 0, sessions_refused = 0;

  TenantUse& of(TtlClass ttl_class, std::uint64_t tenant) {
    const auto found = tenants.find({ttl_class, tenant});
    if (found != tenants.end()) return found->second;
    return tenants[{ttl_class, tenants.size() < kTenantsMax ? tenant : 0}];
  }
  std::map<std::pair<TtlClass, std::uint64_t>, TenantUse> tenants;
};

}  // namespace penstock::service
