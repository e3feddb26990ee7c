// The default placer of prefill: tiers as preferences, least outstanding quota, predicted time.
//
// For every rank the time until the prompt would be done there is predicted: the later of its
// compute queue and the arrival of the hit's KV (load queue + own load), plus own compute, or the
// way of its KV to where it goes on when that takes longer. Hit tokens cost only their load. Ranks
// of an engine step together, so a prompt waits for half of the step under way and its own step
// takes as long as those of the other ranks. Among the engines that prefer the request's tier the
// rank that is ready first is the choice. A rank of another engine is taken only when the request
// gains more there than it delays others: those waiting on that engine, and those of its tiers that
// will arrive while the request computes.
//
// Invariants: as of PlacementPolicy; tiers never exclude: with no candidate in the tier the best of
// the others is taken. Scores are seconds until done, plus the delay to others where it counts.
// Units: seconds. Concurrency: one thread. Source: design.md section 7; facts: deepseek.md 3.
#pragma once

#include <vector>

#include "core/routing/policy.h"
#include "core/routing/tiers.h"

namespace penstock::routing {

struct PrefillBalancerOptions {
  TierOptions tiers = {};
  double delay_weight = 1;    // of others' delay against own gain
  double step_seconds = 0.2;  // longest step of an engine: its chunks' time budget
};

class PrefillBalancer final : public PlacementPolicy {
 public:
  explicit PrefillBalancer(const PrefillBalancerOptions& options);
  std::string_view name() const override { return "prefill-balancer"; }

  // Ends the round when it is time, with as many engines as there are; true when preferences
  // changed.
  bool advance(Instant now, std::size_t engines);
  void place(const PlaceRequest& request, std::span<const RankView> ranks, Rng& rng,
             Decision& out) override;
  const Tiers& tiers() const { return tiers_; }

 private:
  void weigh_engines(std::span<const RankView> ranks, std::size_t own_tier);

  PrefillBalancerOptions options_;
  Tiers tiers_;
  // What `s` seconds of compute there delay others: s * waiting + s^2 * coming.
  struct Engine {
    double waiting = 0;  // per rank
    double coming = 0;   // a second and rank, halved
    double step = 0;     // seconds of its present kind of step
    std::int64_t ranks = 0;
    bool prefers = false;  // the request's tier
  };
  std::vector<Engine> engines_;  // scratch
};

// Seconds until a prompt placed there would be done, on an engine whose steps last so long.
double ready_seconds(const RankView& rank, double step_seconds);

}  // namespace penstock::routing
