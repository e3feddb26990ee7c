// Random: every candidate is as good as another.
#include "core/routing/policies.h"

namespace penstock::routing {
namespace {

class Random final : public PlacementPolicy {
 public:
  std::string_view name() const override { return "random"; }

  void place(const PlaceRequest& request, std::span<const RankView> ranks, Rng& rng,
             Decision& out) override {
    if (!open_decision(request, ranks, out)) return;
    std::uint64_t skip = rng.below(out.candidates);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (out.scores[i] == kNotCandidate || skip-- > 0) continue;
      out.choice = static_cast<std::uint32_t>(i);
      break;
    }
    out.reason = PlaceReason::kRandom;
  }
};

}  // namespace

std::unique_ptr<PlacementPolicy> make_random() {
  return std::make_unique<Random>();
}

}  // namespace penstock::routing
