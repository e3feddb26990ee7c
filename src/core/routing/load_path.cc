#include "core/routing/load_path.h"

#include <algorithm>

namespace penstock::routing {

LoadPath choose_load_path(Bytes bytes, KvTier tier, const LinkView& own,
                          std::span<const LinkView> decode_hosts, const CostModels& costs,
                          const LoadPathOptions& options) {
  const double read = to_seconds(costs.load(bytes, tier));
  LoadPath best{std::nullopt, own.queue_seconds + read, read};
  if (bytes.value <= 0) return best;
  // Shared storage can be read from anywhere; a tier of one host only there.
  if (tier != KvTier::kCluster) return best;
  const double own_arrives = best.arrives_seconds;
  const double first = to_seconds(costs.transfer(Bytes(1), {own.zone, own.zone}));
  for (std::size_t i = 0; i < decode_hosts.size(); ++i) {
    const LinkView& host = decode_hosts[i];
    if (!host.usable || host.queue_seconds > options.spare_max) continue;
    const double hop = to_seconds(costs.transfer(bytes, {host.zone, own.zone}));
    const double arrives = host.queue_seconds + std::max(read, hop) + first;
    if (arrives >= best.arrives_seconds || arrives > own_arrives - options.gain_min) continue;
    best = {i, arrives, read};
  }
  return best;
}

}  // namespace penstock::routing
