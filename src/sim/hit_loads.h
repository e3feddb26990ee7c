// The links over which hosts read hits: which one reads what, and when it has arrived.
//
// A host reads one hit after the other. What host memory and disk have is read by the rank's own
// host; what the store has may come through a decode host with spare bandwidth, which passes it on
// while it reads (core/routing/load_path.h), when that is allowed. The network between hosts is not
// a queue, and a read whose decode host fails under way still arrives.
//
// Units: seconds. Concurrency: one thread. Source: design.md section 7.
#pragma once

#include <vector>

#include "core/routing/load_path.h"
#include "core/routing/profile.h"
#include "sim/tiered_cache.h"

namespace penstock::sim {

class HitLoads {
 public:
  // `decode_usable` (by decode engine) has to outlive this.
  HitLoads(const routing::Profile& profile, std::int64_t block_tokens, std::size_t zones,
           bool through_decode, const std::vector<bool>& decode_usable);

  struct Hit {
    double own = 0;        // of reading what only the own host can read
    double store = 0;      // of reading the rest
    Bytes store_bytes{0};  // of the rest
    double seconds() const { return own + store; }
  };
  // The first `tokens` of what was found.
  Hit hit(const TierHit& found, std::int64_t tokens) const;
  // Reading the hit for a rank of this host alone would take hit.seconds(); what comes on top.
  double wait(std::size_t host, const Hit& hit, Instant now);
  // Takes the links for it; true when a decode host reads a part. `arrives`: when all is there.
  bool take(std::size_t host, const Hit& hit, Instant now, Instant& arrives);
  // Prefill hosts, then decode hosts, which read for prompts that are computed there.
  std::size_t hosts() const { return own_free_.size() + decode_free_.size(); }
  std::size_t host_of(std::size_t prefill_rank) const { return prefill_rank / host_ranks_; }
  std::size_t host_of_decode(std::size_t rank) const {
    return own_free_.size() + rank / decode_host_ranks_;
  }

 private:
  routing::LoadPath store_path(std::size_t host, const Hit& hit, Instant now);

  const routing::Profile& profile_;
  const std::int64_t block_tokens_;
  const std::size_t host_ranks_;
  const std::size_t decode_host_ranks_;
  const bool through_decode_;
  const std::vector<bool>& decode_usable_;
  routing::CostModels costs_;
  std::vector<Instant> own_free_;                  // of each prefill host
  std::vector<std::uint16_t> own_zones_;           // likewise
  std::vector<Instant> decode_free_;               // of each decode host
  std::vector<std::size_t> decode_engines_;        // likewise, that of its first rank
  std::vector<routing::LinkView> decode_links_{};  // scratch, but for the zones
};

}  // namespace penstock::sim
