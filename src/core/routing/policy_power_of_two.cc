// Power of two choices: two different candidates are drawn, the one with fewer requests is taken.
// Source: M. Mitzenmacher, "The power of two choices in randomized load balancing", 2001.
#include "core/routing/policies.h"

namespace penstock::routing {
namespace {

class PowerOfTwo final : public PlacementPolicy {
 public:
  std::string_view name() const override { return "power-of-two"; }

  void place(const PlaceRequest& request, std::span<const RankView> ranks, Rng& rng,
             Decision& out) override {
    if (!open_decision(request, ranks, out)) return;
    const std::uint64_t first = rng.below(out.candidates);
    std::uint64_t second = rng.below(out.candidates - 1);
    if (second >= first) ++second;
    std::uint64_t seen = 0;
    double least = kNotCandidate;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (out.scores[i] == kNotCandidate) continue;
      out.scores[i] = static_cast<double>(ranks[i].running + ranks[i].waiting);
      const std::uint64_t at = seen++;
      if ((at != first && at != second) || out.scores[i] >= least) continue;
      least = out.scores[i];
      out.choice = static_cast<std::uint32_t>(i);
    }
    out.reason = PlaceReason::kBetterOfTwo;
  }
};

}  // namespace

std::unique_ptr<PlacementPolicy> make_power_of_two() {
  return std::make_unique<PowerOfTwo>();
}

}  // namespace penstock::routing
