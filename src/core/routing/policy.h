// Where a request goes: the interface that all placement policies share, over plain values.
//
// A policy gets one request and a view of every rank, and answers with a choice, a score for each
// candidate (lower is better) and a reason. It sees no clock and no network: predicted times and
// hit lengths come in with the views. The same objects run in the gateway and in the simulator.
//
// Invariants: the choice is a rank that can take the request; equal inputs (state and random
// numbers included) give equal decisions; ties go to the lower score, then the lower index, except
// in policies that say otherwise; nothing grows with history. No candidate is an answer with a
// reason, never an error. Cost: O(ranks), a few nanoseconds each. Concurrency: one thread.
// Source: design.md section 7; facts: engines.md section 2.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "base/units.h"

namespace penstock::routing {

struct RankId {
  WorkerId worker;
  std::uint32_t rank = 0;
  auto operator<=>(const RankId&) const = default;
};

// One rank as the placer sees it, for one request. Views may be stale; what this gateway has placed
// since is counted in by its owner.
struct RankView {
  RankId id;
  std::uint32_t engine = 0;  // ranks that step together; an engine's ranks stand together
  std::uint16_t zone = 0;
  bool accepts = true;  // connected, serving the model, not draining
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t kv_tokens = 0;           // in use, and reserved for what is on its way or will grow
  std::int64_t kv_capacity = 0;         // 0: unlimited
  double outstanding_seconds = 0;       // predicted compute of all that it has been given
  double load_outstanding_seconds = 0;  // predicted KV loads queued on its link
  // For this request:
  std::int64_t hit_tokens = 0;  // prompt tokens that need not be computed there
  double compute_seconds = 0;   // predicted, of the rest of the prompt
  double load_seconds = 0;      // predicted, of the hit tokens' KV
  double transfer_seconds = 0;  // predicted, of its KV to where it goes on, while it is computed
};

struct PlaceRequest {
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;  // expected
  std::uint64_t session = 0;       // hash of the session; 0: none
  // Equal ranks: the first from this view on is taken. Gateways differ in it, so that those who see
  // the same idle ranks don't all take the same one.
  std::uint32_t ties_from = 0;
};

enum class PlaceReason : std::uint8_t {
  kNoRanks,      // there are none at all
  kNoneAccepts,  // all are gone, draining or serve other models
  kNoRoom,       // no rank's KV pool could hold the request now
  kTooLarge,     // no rank's KV pool could ever hold it
  kOnlyCandidate,
  kRandom,
  kNextInTurn,
  kFewestRequests,
  kBetterOfTwo,
  kSession,
  kPrefix,
  kImbalance,  // affinity gave way to balance
  kLowestCost,
  kTier,         // least outstanding quota in the request's own tier
  kCrossedTier,  // gains more elsewhere than it delays others
  kLevel,        // keeps requests and KV level
};
std::string_view to_string(PlaceReason reason);

struct Decision {
  std::optional<std::uint32_t> choice;  // index into the views
  PlaceReason reason = PlaceReason::kNoRanks;
  std::uint32_t candidates = 0;  // that could take it
  std::vector<double> scores;    // of every view; kNotCandidate for those that can't take it
};
inline constexpr double kNotCandidate = std::numeric_limits<double>::infinity();

class PlacementPolicy {
 public:
  virtual ~PlacementPolicy() = default;
  virtual std::string_view name() const = 0;
  // Decides; `out` is overwritten, its memory reused.
  virtual void place(const PlaceRequest& request, std::span<const RankView> ranks, Rng& rng,
                     Decision& out) = 0;
};

// The KV that a request will need on a rank: its prompt and its expected answer.
inline std::int64_t kv_needed(const PlaceRequest& request) {
  return request.prompt_tokens + request.output_tokens;
}
inline bool can_take(const RankView& rank, const PlaceRequest& request) {
  return rank.accepts &&
         (rank.kv_capacity == 0 || rank.kv_tokens + kv_needed(request) <= rank.kv_capacity);
}
// Fills scores of non-candidates, counts candidates and sets the reason when there are none or just
// one (the choice is then made). True when there is something left to decide. Scores of candidates
// are 0.
bool open_decision(const PlaceRequest& request, std::span<const RankView> ranks, Decision& out);
// Chooses the candidate with the least score; on ties the first one from view `from` on, and round.
void choose_least(Decision& out, PlaceReason reason, std::size_t from = 0);

// One line for people: "worker 3 rank 0 of 64 candidates: fewest requests (score 2; next best 4)".
std::string explain(const Decision& decision, std::span<const RankView> ranks,
                    std::string_view policy);

}  // namespace penstock::routing
