#include "sim/rank_reports.h"

#include <algorithm>
#include <utility>

namespace penstock::sim {

RankReports::RankReports(std::size_t gateways, std::size_t ranks)
    : placed_(ranks, std::vector<Load>(gateways)), last_(ranks), made_(ranks) {
  for (std::size_t rank = 0; rank < ranks; ++rank)
    last_[rank] = {rank, 0, {}, std::vector<Load>(gateways)};
}

void RankReports::placed(std::size_t gateway, std::size_t rank, const Load& load) {
  placed_[rank][gateway] += load;
}

RankReports::Snapshot RankReports::snapshot(std::size_t rank, const Load& truth) {
  return {rank, ++made_[rank], truth, placed_[rank]};
}

void RankReports::arrive(Snapshot&& snapshot) {
  const std::size_t rank = snapshot.rank;
  last_[rank] = std::move(snapshot);
}

void RankReports::fill(std::size_t gateway, std::size_t rank, routing::RankView& view) const {
  const Snapshot& last = last_[rank];
  Load believed = last.truth;
  believed += placed_[rank][gateway] - last.placed[gateway];
  view.outstanding_seconds = std::max(0.0, believed.seconds);
  view.running = static_cast<std::int64_t>(believed.requests_running);
  view.waiting = static_cast<std::int64_t>(believed.requests_waiting);
  view.kv_tokens = static_cast<std::int64_t>(believed.kv_tokens);
}

}  // namespace penstock::sim
