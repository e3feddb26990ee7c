// Linear prefix/load cost: prefill_weight * (outstanding + own compute) + decode_weight * KV share,
// the least of it, or a draw by exp(-cost / temperature).
//
// The shape of Dynamo's cost (facts: engines.md 2.1), in seconds instead of blocks: own compute
// already leaves out hit tokens. KV share counts in units of the mean own compute, so both weights
// are of order one.
#include <algorithm>
#include <cmath>

#include "core/routing/policies.h"

namespace penstock::routing {
namespace {

class LinearCost final : public PlacementPolicy {
 public:
  explicit LinearCost(const PolicyOptions& options) : options_(options) {}
  std::string_view name() const override { return "linear-cost"; }

  void place(const PlaceRequest& request, std::span<const RankView> ranks, Rng& rng,
             Decision& out) override {
    if (!open_decision(request, ranks, out)) return;
    double own = 0;
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (out.scores[i] != kNotCandidate) own += ranks[i].compute_seconds;
    own = own > 0 ? own / out.candidates : 1;  // decode: nothing to compute, KV decides
    double least = kNotCandidate;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (out.scores[i] == kNotCandidate) continue;
      const RankView& rank = ranks[i];
      const double share = rank.kv_capacity > 0
                               ? static_cast<double>(rank.kv_tokens + kv_needed(request)) /
                                     static_cast<double>(rank.kv_capacity)
                               : 0;
      out.scores[i] =
          options_.prefill_weight *
              (rank.outstanding_seconds + std::max(rank.compute_seconds, rank.transfer_seconds)) +
          options_.decode_weight * share * own;
      least = std::min(least, out.scores[i]);
    }
    if (options_.temperature > 0)
      draw(least, rng, out);
    else
      choose_least(out, PlaceReason::kLowestCost, request.ties_from);
  }

 private:
  // Costs are taken relative to the least, so exp() neither overflows nor becomes 0 for all.
  void draw(double least, Rng& rng, Decision& out) const {
    const double scale = options_.temperature * std::max(least, 1e-9);
    double total = 0;
    for (const double score : out.scores)
      if (score != kNotCandidate) total += std::exp((least - score) / scale);
    double left = rng.uniform() * total;
    for (std::size_t i = 0; i < out.scores.size(); ++i) {
      if (out.scores[i] == kNotCandidate) continue;
      out.choice = static_cast<std::uint32_t>(i);
      left -= std::exp((least - out.scores[i]) / scale);
      if (left < 0) break;
    }
    out.reason = PlaceReason::kLowestCost;
  }

  PolicyOptions options_;
};

}  // namespace

std::unique_ptr<PlacementPolicy> make_linear_cost(const PolicyOptions& options) {
  return std::make_unique<LinearCost>(options);
}

}  // namespace penstock::routing
