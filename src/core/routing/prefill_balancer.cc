#include "core/routing/prefill_balancer.h"

#include <algorithm>
#include <array>

namespace penstock::routing {

double ready_seconds(const RankView& rank, double step_seconds) {
  const double loaded =
      rank.load_seconds > 0 ? rank.load_outstanding_seconds + rank.load_seconds : 0;
  return std::max({rank.outstanding_seconds, step_seconds / 2, loaded}) +
         std::max({rank.compute_seconds, step_seconds, rank.transfer_seconds});
}

PrefillBalancer::PrefillBalancer(const PrefillBalancerOptions& options)
    : options_(options), tiers_(options.tiers) {}

bool PrefillBalancer::advance(Instant now, std::size_t engines) {
  return tiers_.advance(now, engines);
}

// FIFO: who waits on the same rank goes first, but ranks of an engine step together, so each of its
// waiting requests is delayed by its share. Those still to come to the engine's other tiers during
// the compute arrive evenly over it, and wait for half of it when they meet this rank.
void PrefillBalancer::weigh_engines(std::span<const RankView> ranks, std::size_t own_tier) {
  std::ranges::fill(engines_, Engine{});
  for (std::size_t i = 0; i < ranks.size();) {
    const std::uint32_t number = ranks[i].engine;
    if (number >= engines_.size()) engines_.resize(number + std::size_t{1});
    Engine engine = engines_[number];  // in registers while its ranks stand together
    for (; i < ranks.size() && ranks[i].engine == number; ++i) {
      engine.waiting += static_cast<double>(ranks[i].waiting);
      engine.step =
          std::max(engine.step, std::min(ranks[i].outstanding_seconds, options_.step_seconds));
      ++engine.ranks;
    }
    engines_[number] = engine;
  }
  std::array<double, kTiers> coming{};
  for (std::size_t tier = 0; tier < kTiers; ++tier)
    if (tier != own_tier && tiers_.engines_of(tier) > 0)
      coming[tier] =
          tiers_.arrivals_per_second(tier) / 2 / static_cast<double>(tiers_.engines_of(tier));
  for (std::size_t e = 0; e < engines_.size(); ++e) {
    Engine& engine = engines_[e];
    if (engine.ranks == 0) continue;
    const double share = 1 / static_cast<double>(engine.ranks);
    engine.waiting *= share;
    engine.prefers = tiers_.prefers(e, own_tier);
    for (std::size_t tier = 0; tier < kTiers; ++tier)
      engine.coming += tiers_.prefers(e, tier) ? coming[tier] * share : 0;
    if (engine.ranks == 1) engine.step = 0;  // nobody steps with it
  }
}

void PrefillBalancer::place(const PlaceRequest& request, std::span<const RankView> ranks, Rng&,
                            Decision& out) {
  const std::size_t tier = tiers_.tier_of(request.prompt_tokens);
  const bool several = open_decision(request, ranks, out);
  if (several) {
    weigh_engines(ranks, tier);
    bool any_prefers = false;
    for (std::size_t i = 0; i < ranks.size() && !any_prefers; ++i)
      any_prefers = out.scores[i] != kNotCandidate && engines_[ranks[i].engine].prefers;
    for (std::size_t i = 0; i < ranks.size();) {
      const std::uint32_t number = ranks[i].engine;
      const Engine engine = engines_[number];
      const bool crosses = any_prefers && !engine.prefers;
      for (; i < ranks.size() && ranks[i].engine == number; ++i) {
        if (out.scores[i] == kNotCandidate) continue;
        const RankView& rank = ranks[i];
        double score = ready_seconds(rank, engine.step);
        if (crosses)
          score += options_.delay_weight * rank.compute_seconds *
                   (engine.waiting + rank.compute_seconds * engine.coming);
        out.scores[i] = score;
      }
    }
    choose_least(out, PlaceReason::kTier, request.ties_from);
    // Equal scores: stay in the tier.
    if (!tiers_.prefers(ranks[*out.choice].engine, tier)) {
      out.reason = PlaceReason::kCrossedTier;
      for (std::size_t k = 0; k < ranks.size(); ++k) {
        const std::size_t i = (k + request.ties_from) % ranks.size();
        if (out.scores[i] == out.scores[*out.choice] && tiers_.prefers(ranks[i].engine, tier)) {
          out.choice = static_cast<std::uint32_t>(i);
          out.reason = PlaceReason::kTier;
          break;
        }
      }
    }
  }
  if (out.choice)
    tiers_.demand(tier, ranks[*out.choice].compute_seconds + ranks[*out.choice].load_seconds);
}

}  // namespace penstock::routing
