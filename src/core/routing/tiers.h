// Which prefill engines prefer which context lengths, from the demand of the last rounds.
//
// Requests fall into tiers by their total context. Demand is counted in quota seconds (predicted
// compute and load), smoothed over rounds. At the end of a round, tiers are laid side by side on a
// line as long as there are engines, each as wide as its share of the demand; an engine prefers
// every tier that covers enough of its place on the line. So neighbouring tiers share an engine,
// a tier without its own share still has one, and small shifts move one boundary.
//
// Hysteresis: new boundaries are taken only when one of them moves by more than `hysteresis`
// engines, or the engines changed.
//
// Invariants: with engines, every tier has at least one, and every engine at least one tier; tiers
// of an engine are neighbours. Units: engines by index, seconds of compute.
// Concurrency: one thread. Source: facts: deepseek.md section 3.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/units.h"

namespace penstock::routing {

inline constexpr std::size_t kTiers = 4;

struct TierOptions {
  // Upper bounds of the first three tiers, in tokens of total context.
  std::array<std::int64_t, kTiers - 1> bounds{16'384, 65'536, 262'144};
  Duration round = std::chrono::seconds(10);
  double smoothing = 0.5;    // weight of the last round against those before
  double hysteresis = 0.25;  // engines
  double cover_min = 0.1;    // of an engine's place
};

class Tiers {
 public:
  explicit Tiers(const TierOptions& options) : options_(options) {}

  std::size_t tier_of(std::int64_t context_tokens) const;
  // A request of this tier arrived, of so many quota seconds.
  void demand(std::size_t tier, double quota_seconds);
  // Ends the round when its time is over or the number of engines changed; true when preferences
  // changed.
  bool advance(Instant now, std::size_t engines);

  bool prefers(std::size_t engine, std::size_t tier) const {
    return engine < masks_.size() && (masks_[engine] >> tier & 1U) != 0;
  }
  std::size_t engines() const { return masks_.size(); }
  // Requests of the tier a second, and quota seconds of one, in the last rounds.
  double arrivals_per_second(std::size_t tier) const { return arrivals_[tier]; }
  double quota_per_request(std::size_t tier) const;
  std::size_t engines_of(std::size_t tier) const { return engines_of_[tier]; }

 private:
  using Line = std::array<double, kTiers + 1>;
  Line wanted(std::size_t engines) const;
  bool lay(const Line& line, std::size_t engines);  // true when preferences changed
  std::size_t count_engines(std::size_t tier) const;

  TierOptions options_;
  std::array<double, kTiers> round_demand_{};  // of the round under way
  std::array<double, kTiers> round_count_{};
  std::array<double, kTiers> demand_{};    // quota seconds per second, smoothed
  std::array<double, kTiers> arrivals_{};  // per second, smoothed
  bool started_ = false;
  bool measured_ = false;
  Instant round_start_{};
  Line line_{};
  std::vector<std::uint8_t> masks_;  // of each engine, a bit per tier
  std::array<std::size_t, kTiers> engines_of_{};
};

}  // namespace penstock::routing
