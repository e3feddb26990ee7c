#include "core/routing/prefill_balancer.h"

#include <algorithm>

namespace penstock::routing {

double ready_seconds(const RankView& rank) {
  const double loaded =
      rank.load_seconds > 0 ? rank.load_outstanding_seconds + rank.load_seconds : 0;
  return std::max(rank.outstanding_seconds, loaded) + rank.compute_seconds;
}

PrefillBalancer::PrefillBalancer(const PrefillBalancerOptions& options)
    : options_(options), tiers_(options.tiers) {}

bool PrefillBalancer::advance(Instant now, std::size_t engines) {
  return tiers_.advance(now, engines);
}

void PrefillBalancer::count_engines(std::span<const RankView> ranks) {
  std::ranges::fill(engines_, Engine{});
  for (const RankView& rank : ranks) {
    if (rank.engine >= engines_.size()) engines_.resize(rank.engine + std::size_t{1});
    Engine& engine = engines_[rank.engine];
    engine.waiting += rank.waiting;
    ++engine.ranks;
  }
}

// FIFO: who waits on the same rank goes first, but ranks of an engine step together, so each of its
// waiting requests is delayed by its share. Those still to come to the engine's own tiers during
// the `own_seconds` arrive evenly over them, and wait for half of it when they meet this rank.
double PrefillBalancer::delay_to_others(const RankView& rank, std::size_t own_tier,
                                        double own_seconds) const {
  const Engine& engine = engines_[rank.engine];
  const double ranks = static_cast<double>(std::max<std::int64_t>(engine.ranks, 1));
  double delay = own_seconds * static_cast<double>(engine.waiting) / ranks;
  for (std::size_t tier = 0; tier < kTiers; ++tier) {
    if (tier == own_tier || !tiers_.prefers(rank.engine, tier)) continue;
    const double shared_by =
        static_cast<double>(std::max<std::size_t>(tiers_.engines_of(tier), 1)) * ranks;
    const double coming = tiers_.arrivals_per_second(tier) / shared_by * own_seconds;
    delay += coming * own_seconds / 2;
  }
  return delay;
}

void PrefillBalancer::place(const PlaceRequest& request, std::span<const RankView> ranks, Rng&,
                            Decision& out) {
  const std::size_t tier = tiers_.tier_of(request.prompt_tokens);
  const bool several = open_decision(request, ranks, out);
  if (several) {
    count_engines(ranks);
    bool any_prefers = false;
    for (std::size_t i = 0; i < ranks.size() && !any_prefers; ++i)
      any_prefers = out.scores[i] != kNotCandidate && tiers_.prefers(ranks[i].engine, tier);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (out.scores[i] == kNotCandidate) continue;
      out.scores[i] = ready_seconds(ranks[i]);
      if (any_prefers && !tiers_.prefers(ranks[i].engine, tier))
        out.scores[i] +=
            options_.delay_weight * delay_to_others(ranks[i], tier, ranks[i].compute_seconds);
    }
    choose_least(out, PlaceReason::kTier);
    // Equal scores: stay in the tier.
    if (!tiers_.prefers(ranks[*out.choice].engine, tier)) {
      out.reason = PlaceReason::kCrossedTier;
      for (std::size_t i = 0; i < ranks.size(); ++i)
        if (out.scores[i] == out.scores[*out.choice] && tiers_.prefers(ranks[i].engine, tier)) {
          out.choice = static_cast<std::uint32_t>(i);
          out.reason = PlaceReason::kTier;
          break;
        }
    }
  }
  if (out.choice)
    tiers_.demand(tier, ranks[*out.choice].compute_seconds + ranks[*out.choice].load_seconds);
}

}  // namespace penstock::routing
