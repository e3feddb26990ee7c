#include "sim/rank_reports.h"

#include <algorithm>
#include <utility>

namespace penstock::sim {

RankReports::RankReports(std::size_t gateways, std::size_t ranks, double work_per_second)
    : gateways_(gateways),
      work_per_second_(work_per_second),
      known_(ranks * gateways),
      numbers_(ranks),
      made_(ranks) {}

void RankReports::placed(std::size_t gateway, std::size_t rank, const Load& load, Instant now) {
  Known& by = known(gateway, rank);
  by.placed += load;
  ++by.times;
  by.given.push_back({now, load.seconds});
}

RankReports::Snapshot RankReports::snapshot(std::size_t rank, const Load& truth, Instant now) {
  Snapshot made{rank, ++made_[rank], now, truth, {}, {}};
  made.placed.reserve(gateways_);
  made.times.reserve(gateways_);
  for (std::size_t g = 0; g < gateways_; ++g) {
    made.placed.push_back(known(g, rank).placed);
    made.times.push_back(known(g, rank).times);
  }
  return made;
}

void RankReports::arrive(Snapshot&& snapshot, Instant now) {
  const std::size_t rank = snapshot.rank;
  numbers_[rank] = snapshot.number;
  for (std::size_t g = 0; g < gateways_; ++g) {
    Known& by = known(g, rank);
    // The report shows what was given before it was made.
    const auto since = static_cast<std::ptrdiff_t>(by.times - snapshot.times[g]);
    by.given.erase(by.given.begin(), by.given.end() - since);
    by.last = snapshot.truth;
    by.placed_then = snapshot.placed[g];
    if (now == snapshot.made) continue;
    by.last += by.placed - by.placed_then;
    by.placed_then = by.placed;
    const double all = by.last.seconds;
    by.last.seconds = routing::left_on_arrival(snapshot.truth.seconds, snapshot.made, by.given, now,
                                               work_per_second_);
    // First come, first done.
    if (all > 0) by.last.requests_waiting *= std::clamp(by.last.seconds / all, 0.0, 1.0);
  }
}

void RankReports::fill(std::size_t gateway, std::size_t rank, routing::RankView& view) const {
  const Known& by = known_[rank * gateways_ + gateway];
  Load believed = by.last;
  believed += by.placed - by.placed_then;
  view.outstanding_seconds = std::max(0.0, believed.seconds);
  view.running = static_cast<std::int64_t>(believed.requests_running);
  view.waiting = static_cast<std::int64_t>(believed.requests_waiting);
  view.kv_tokens = static_cast<std::int64_t>(believed.kv_tokens);
}

}  // namespace penstock::sim
