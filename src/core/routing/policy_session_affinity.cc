// Session affinity: each session has a home, the candidate with the highest hash of (session,
// rank). No table: all gateways agree, and a rank that comes or goes only moves its own sessions.
// Without a session, or when ranks are out of balance, the rank with fewest requests. The score
// is the number of requests, but for the home it is -1.
// Source: D. Thaler, C. Ravishankar, "Using name-based mappings to increase hit rates", 1998.
#include "core/routing/policies.h"

namespace penstock::routing {
namespace {

// Stafford's mixer ("Mix13"): full avalanche in three multiplications' time.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ x >> 27) * 0x94D049BB133111EBULL;
  return x ^ x >> 31;
}

class SessionAffinity final : public PlacementPolicy {
 public:
  explicit SessionAffinity(const PolicyOptions& options) : options_(options) {}
  std::string_view name() const override { return "session-affinity"; }

  void place(const PlaceRequest& request, std::span<const RankView> ranks, Rng&,
             Decision& out) override {
    if (!open_decision(request, ranks, out)) return;
    const bool gives_way = imbalanced(request_spread(ranks, out), options_);
    std::size_t home = ranks.size();
    std::uint64_t highest = 0;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (out.scores[i] == kNotCandidate) continue;
      out.scores[i] = static_cast<double>(ranks[i].running + ranks[i].waiting);
      const std::uint64_t hash =
          mix(mix(request.session ^ ranks[i].id.worker.value * 0x9E3779B97F4A7C15ULL) ^
              ranks[i].id.rank);
      if (home != ranks.size() && hash <= highest) continue;
      highest = hash;
      home = i;
    }
    if (request.session == 0) {
      choose_least(out, PlaceReason::kFewestRequests, request.ties_from);
    } else if (gives_way) {
      choose_least(out, PlaceReason::kImbalance, request.ties_from);
    } else {
      out.scores[home] = -1;
      choose_least(out, PlaceReason::kSession, request.ties_from);
    }
  }

 private:
  PolicyOptions options_;
};

}  // namespace

std::unique_ptr<PlacementPolicy> make_session_affinity(const PolicyOptions& options) {
  return std::make_unique<SessionAffinity>(options);
}

}  // namespace penstock::routing
