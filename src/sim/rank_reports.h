// What gateways know of ranks: reports that come late or not at all, plus what each gateway has
// placed itself since.
//
// A rank's truth is its load and how much every gateway has ever given it. A report is a copy of
// the truth; when it arrives (after the lag) a gateway adds what it has given since the copy was
// made. What other gateways gave in that time it can't know.
//
// Units: seconds of quota, requests, KV tokens, as in RankView. Concurrency: one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "core/routing/policy.h"

namespace penstock::sim {

struct Load {
  double seconds = 0;
  double requests_running = 0;
  double requests_waiting = 0;
  double kv_tokens = 0;

  Load& operator+=(const Load& o) {
    seconds += o.seconds;
    requests_running += o.requests_running;
    requests_waiting += o.requests_waiting;
    kv_tokens += o.kv_tokens;
    return *this;
  }
  Load operator-(const Load& o) const {
    return {seconds - o.seconds, requests_running - o.requests_running,
            requests_waiting - o.requests_waiting, kv_tokens - o.kv_tokens};
  }
};

class RankReports {
 public:
  RankReports(std::size_t gateways, std::size_t ranks);

  // The gateway gives the rank this much more.
  void placed(std::size_t gateway, std::size_t rank, const Load& load);

  struct Snapshot {
    std::size_t rank = 0;
    std::uint64_t number = 0;  // of this rank's reports
    Load truth;
    std::vector<Load> placed;  // by each gateway, ever
  };
  Snapshot snapshot(std::size_t rank, const Load& truth);
  // It reaches all gateways. An older one than the last is ignored by its owner's order of calls.
  void arrive(Snapshot&& snapshot);

  // Of the rank's last report.
  std::uint64_t number(std::size_t rank) const { return last_[rank].number; }
  // Writes what this gateway believes into the view.
  void fill(std::size_t gateway, std::size_t rank, routing::RankView& view) const;

 private:
  std::vector<std::vector<Load>> placed_;  // [ranks][gateways]
  std::vector<Snapshot> last_;             // of each rank
  std::vector<std::uint64_t> made_;        // reports of each rank
};

}  // namespace penstock::sim
