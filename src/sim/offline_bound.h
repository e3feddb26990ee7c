// The offline bound: conditions that every schedule which meets the SLO must satisfy.
//
// A load that fails one of them can't be served by anybody on this hardware, however clever and
// however well informed of the future. The highest load that satisfies all of them bounds every
// policy from above; docs/design/0009-offline-bound.md has the derivation.
//
// Conditions, each for every window of time [s, t] that is looked at:
// - prefill: what arrives from s on and is due by t costs at most what the ranks can do in t - s.
//   Hits are free and as long as any earlier arrival allows. A step has its base cost.
// - decode: the tokens of answers that begin from s on and are due by t, likewise; a step of at
//   most tau has only tau - d for tokens.
// Where a window asks too much, requests have to be given up, the costliest first; over disjoint
// windows they add up, and there may be `missed_share` of them.
//
// This file shares no code with the policies or the engine models, only the profile's laws.
//
// Invariants: a run of the simulator that meets the SLO satisfies the bound (a test tries it).
// Units: seconds; work in seconds of one rank. Cost: O(n log n) for each of O(log duration) window
// lengths; with few requests all windows between an arrival and a deadline are looked at.
// Concurrency: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "core/routing/profile.h"
#include "evaluate/trace.h"
#include "sim/slo.h"

namespace penstock::sim {

struct BoundRequest {
  double arrival = 0;
  double deadline = 0;       // of the first token
  double finish = 0;         // of the last token, at tau a token
  double prefill_work = 0;   // seconds of one rank, without the steps' base cost
  double decode_work = 0;    // likewise; e and f only
  double decode_tokens = 0;  // tokens after the first
  double last_token_work = 0;
};

// What the bound knows of a load. Requests that arrive before `warmup` give hits but are not asked
// to be served.
struct BoundLoad {
  std::vector<BoundRequest> requests;  // measured ones, by arrival
  double last_arrival = 0;
  double tokens_all = 0;  // of all arrivals, for the share of gaps
  double prompt_tokens = 0;
  double hit_tokens = 0;  // of the measured ones: the best hit rate there is
};
BoundLoad bound_load(const routing::Profile& profile, const evaluate::Trace& trace,
                     const std::vector<evaluate::Arrival>& arrivals, Duration warmup,
                     const Slo& slo);

enum class BoundCondition : std::uint8_t { kNone, kPrefill, kDecode };

struct BoundVerdict {
  bool feasible = true;
  BoundCondition broken = BoundCondition::kNone;
  double prefill_missed = 0;  // requests that prefill makes any schedule give up
  double decode_missed = 0;
  double missed_allowed = 0;
};

struct BoundOptions {
  Slo slo = {};
  // Policies may prefill on decode ranks: the prefill condition counts all ranks.
  bool prefill_on_decode_ranks = false;
  // With at most so many requests every window is looked at.
  std::size_t exact_requests_max = 96;
};

BoundVerdict check_bound(const routing::Profile& profile, const BoundLoad& load,
                         const BoundOptions& options);

}  // namespace penstock::sim
