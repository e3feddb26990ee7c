// Prefix affinity with an imbalance guard: the rank with the longest hit, when the hit is worth it
// and ranks are level enough; fewest requests otherwise. The score is requests - 1e9 * hit share
// where affinity decides, requests alone where it does not.
//
// Unlike the router it resembles (facts: engines.md 2.2), a cold request goes to the least loaded
// rank, not to the one with the smallest index, which makes hot spots.
#include <algorithm>

#include "core/routing/policies.h"

namespace penstock::routing {
namespace {

constexpr double kHitWeight = 1e9;

class PrefixAffinity final : public PlacementPolicy {
 public:
  explicit PrefixAffinity(const PolicyOptions& options) : options_(options) {}
  std::string_view name() const override { return "prefix-affinity"; }

  void place(const PlaceRequest& request, std::span<const RankView> ranks, Rng&,
             Decision& out) override {
    if (!open_decision(request, ranks, out)) return;
    const bool gives_way = imbalanced(request_spread(ranks, out), options_);
    const double prompt = static_cast<double>(std::max<std::int64_t>(request.prompt_tokens, 1));
    bool hit = false;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (out.scores[i] == kNotCandidate) continue;
      out.scores[i] = static_cast<double>(ranks[i].running + ranks[i].waiting);
      const double share = static_cast<double>(ranks[i].hit_tokens) / prompt;
      if (share <= options_.prefix_share_min) continue;
      hit = true;
      if (!gives_way) out.scores[i] -= kHitWeight * share;
    }
    choose_least(out,
                 !hit        ? PlaceReason::kFewestRequests
                 : gives_way ? PlaceReason::kImbalance
                             : PlaceReason::kPrefix,
                 request.ties_from);
  }

 private:
  PolicyOptions options_;
};

}  // namespace

std::unique_ptr<PlacementPolicy> make_prefix_affinity(const PolicyOptions& options) {
  return std::make_unique<PrefixAffinity>(options);
}

}  // namespace penstock::routing
