// ExpertBalance: how unevenly the experts' work of late has been spread (moe_lb).
//
// At every heartbeat a worker says how many rows its experts have computed, and how many that would
// have been had every expert rank had as many as the busiest one, pass by pass. What both have
// grown by is a window; the ratio of their sums over the last windows is most over mean, each pass
// counted by its rows. Only ranks with an expert map have expert ranks, and a balance.
//
// Invariants: a balance is at least 1; a new run of the worker and a new map begin anew.
// Errors: none; counts that fall begin anew. Concurrency: shard thread only.
// Source: docs/experts.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "port/engine_client.h"
#include "service/gateway/rank_ledger.h"

namespace penstock::gateway {

class ExpertBalance {
 public:
  // Looks at what the workers say; called some times a second.
  void watch(std::span<const WorkerView> workers);
  // Nothing until a window has been seen.
  std::optional<double> of(RankId rank) const;
  // Of all ranks that step together.
  std::optional<double> of_group(std::string_view step_group) const;

 private:
  struct Sums {
    double picks = 0;
    double paced = 0;
    std::optional<double> ratio() const;
  };
  struct Seen {
    Epoch epoch;
    std::uint64_t map_version = 0;
    std::uint64_t picks = 0;
    std::uint64_t paced = 0;
    Sums recent;
    bool there = false;  // at the last look
  };

  std::map<RankId, Seen> seen_;
  std::map<std::string, Sums, std::less<>> groups_;
};

}  // namespace penstock::gateway
