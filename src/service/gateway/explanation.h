// Why a request was placed where it was, as values: for `penstock explain`.
//
// Invariants: no content, no key, no address; at most kCandidatesShown candidates a leg.
// Concurrency: values. Source: design.md, law 5.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"

namespace penstock::gateway {

struct CandidateExplanation {
  std::string rank;             // "prefill-0", "decode-1/3"
  std::optional<double> score;  // lower is better; none: it could not take the request
  std::int64_t requests = 0;
  std::int64_t kv_tokens = 0;
  std::int64_t kv_capacity = 0;  // 0: not known, or not looked at
  double queue_seconds = 0;
  double compute_seconds = 0;
  double transfer_seconds = 0;
  double load_seconds = 0;  // of the hit's KV, behind what else is loaded there
  double step_seconds = 0;  // of its engine's decode steps, with the request; 0: not looked at
  double moe_lb = 0;        // of its experts of late, most over mean; 0: not known
};

struct LegExplanation {
  static constexpr std::size_t kCandidatesShown = 32;
  std::string policy;
  std::string reason;
  std::string chosen;  // empty: nobody
  std::uint32_t ranks = 0;
  std::uint32_t candidates = 0;            // that could take it
  std::vector<CandidateExplanation> best;  // first the chosen one, then by score
};

struct PlacementExplanation {
  std::string request_id;
  std::string model;
  std::uint32_t placement = 0;  // 0: the first; others after a worker was lost
  std::uint32_t tokens = 0;
  std::uint32_t cached_tokens = 0;  // expected; of them, not in host memory:
  std::uint32_t cached_on_disk = 0;
  std::uint32_t cached_remotely = 0;
  std::uint32_t output_tokens = 0;  // expected, of all choices
  Duration queued{};                // in front of the engines
  std::string summary;              // as in the access log
  std::optional<LegExplanation> prefill;
  std::optional<LegExplanation> decode;
};

}  // namespace penstock::gateway
