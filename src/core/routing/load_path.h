// Which host reads a hit's KV from storage: the prefill rank's own, or a decode host with spare
// bandwidth that passes it on.
//
// With many hits, storage links of prefill hosts are the bottleneck while those of decode hosts
// idle. The read goes where it is predicted to arrive first: a link's queue plus the read, and for
// another host the transfer to the prefill host on top (the two overlap but for the latency, so
// the slower of both counts). A decode host only helps while its link is less busy than
// `spare_max`.
//
// Invariants: ties go to the own host, then to the lower index. Units: seconds, bytes.
// Concurrency: pure. Source: design.md section 7; DualPath (arXiv 2602.21548) for the second path.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/routing/cost_model.h"

namespace penstock::routing {

struct LinkView {
  std::uint16_t zone = 0;
  double queue_seconds = 0;  // predicted reads outstanding on its storage link
  bool usable = true;
};

struct LoadPath {
  std::optional<std::size_t> through;  // index of the decode host; nullopt: the own link
  double arrives_seconds = 0;          // predicted, from now
  double link_seconds = 0;             // what it adds to that link's queue
};

struct LoadPathOptions {
  double spare_max = 0.5;   // seconds of queue on a decode host's link
  double gain_min = 0.002;  // seconds; less is not worth a second hop
};

LoadPath choose_load_path(Bytes bytes, KvTier tier, const LinkView& own,
                          std::span<const LinkView> decode_hosts, const CostModels& costs,
                          const LoadPathOptions& options);

}  // namespace penstock::routing
