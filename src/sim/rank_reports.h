// What gateways know of ranks: reports that come late or not at all, plus what each gateway has
// placed itself since.
//
// A rank's truth is its load and how much every gateway has ever given it. A report is a copy of
// the truth; when it arrives (after the lag) a gateway brings it up to date: it takes off what the
// rank will have done on the report's way (core/routing/late_report.h), and adds what it has given
// since the copy was made. What other gateways gave in that time it can't know.
//
// Units: seconds of quota, requests, KV tokens, as in RankView. Concurrency: one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "core/routing/late_report.h"
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
  // `work_per_second`: of what a rank reports in seconds, while it has any.
  RankReports(std::size_t gateways, std::size_t ranks, double work_per_second);

  // The gateway gives the rank this much more.
  void placed(std::size_t gateway, std::size_t rank, const Load& load, Instant now);

  struct Snapshot {
    std::size_t rank = 0;
    std::uint64_t number = 0;  // of this rank's reports
    Instant made{};
    Load truth;
    std::vector<Load> placed;          // by each gateway, ever
    std::vector<std::uint64_t> times;  // that each gateway gave something
  };
  Snapshot snapshot(std::size_t rank, const Load& truth, Instant now);
  // It reaches all gateways. An older one than the last is ignored by its owner's order of calls.
  void arrive(Snapshot&& snapshot, Instant now);

  // Of the rank's last report.
  std::uint64_t number(std::size_t rank) const { return numbers_[rank]; }
  // Writes what this gateway believes into the view.
  void fill(std::size_t gateway, std::size_t rank, routing::RankView& view) const;

 private:
  // Of one gateway about one rank.
  struct Known {
    Load placed;       // ever
    Load last;         // the last report, brought up to date when it arrived
    Load placed_then;  // that is in it
    std::uint64_t times = 0;
    std::vector<routing::GivenWork> given;  // that no report has shown yet: the last of `times`
  };
  Known& known(std::size_t gateway, std::size_t rank) { return known_[rank * gateways_ + gateway]; }

  std::size_t gateways_;
  double work_per_second_;
  std::vector<Known> known_;            // [ranks, gateways]
  std::vector<std::uint64_t> numbers_;  // of each rank's last report
  std::vector<std::uint64_t> made_;     // reports of each rank
};

}  // namespace penstock::sim
