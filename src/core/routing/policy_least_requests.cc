// Least requests: fewest running and waiting. Among equals one is drawn, or a burst of requests on
// stale views would all go to the first rank.
#include "core/routing/policies.h"

namespace penstock::routing {
namespace {

class LeastRequests final : public PlacementPolicy {
 public:
  std::string_view name() const override { return "least-requests"; }

  void place(const PlaceRequest& request, std::span<const RankView> ranks, Rng& rng,
             Decision& out) override {
    if (!open_decision(request, ranks, out)) return;
    double least = kNotCandidate;
    std::uint64_t equal = 0;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (out.scores[i] == kNotCandidate) continue;
      out.scores[i] = static_cast<double>(ranks[i].running + ranks[i].waiting);
      if (out.scores[i] < least) {
        least = out.scores[i];
        equal = 0;
      }
      if (out.scores[i] == least) ++equal;
    }
    std::uint64_t skip = rng.below(equal);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (out.scores[i] != least || skip-- > 0) continue;
      out.choice = static_cast<std::uint32_t>(i);
      break;
    }
    out.reason = PlaceReason::kFewestRequests;
  }
};

}  // namespace

std::unique_ptr<PlacementPolicy> make_least_requests() {
  return std::make_unique<LeastRequests>();
}

}  // namespace penstock::routing
