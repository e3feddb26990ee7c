// Round robin: the next candidate after the last choice, by index. The score is the number of turns
// to wait.
#include "core/routing/policies.h"

namespace penstock::routing {
namespace {

class RoundRobin final : public PlacementPolicy {
 public:
  std::string_view name() const override { return "round-robin"; }

  void place(const PlaceRequest& request, std::span<const RankView> ranks, Rng&,
             Decision& out) override {
    if (open_decision(request, ranks, out)) {
      const std::size_t start = next_ % ranks.size();
      for (std::size_t i = 0; i < ranks.size(); ++i)
        if (out.scores[i] != kNotCandidate)
          out.scores[i] = static_cast<double>(i >= start ? i - start : i + ranks.size() - start);
      choose_least(out, PlaceReason::kNextInTurn);
    }
    if (out.choice) next_ = *out.choice + 1U;
  }

 private:
  std::size_t next_ = 0;
};

}  // namespace

std::unique_ptr<PlacementPolicy> make_round_robin() {
  return std::make_unique<RoundRobin>();
}

}  // namespace penstock::routing
