// The service level that simulations are judged by, and what it asks of one request.
//
// A request is served in time when its first token comes within max(limit, ratio x the prompt's own
// cold prefill) of its arrival, and the rest of its answer at no less than one token per `tau` on
// average. A run meets the level when all but `missed_share` of *all* arrivals are served in time
// (refused ones are not) and all but `gap_share` of all gaps between tokens are at most `tau`.
//
// The average per request is what keeps the share of gaps honest: without it a schedule could put
// whole answers off for ever at the price of one long gap each.
//
// Units: seconds. Concurrency: values. Source: design.md section 9; docs/design/0009.
#pragma once

#include <algorithm>

#include "core/routing/cost_model.h"

namespace penstock::sim {

struct Slo {
  double ttft_limit = 2;
  double ttft_ratio = 3;
  double tau = 0.05;
  double missed_share = 0.01;
  double gap_share = 0.01;

  double first_token_limit(const PrefillCoefficients& prefill, double prompt_tokens) const {
    return std::max(ttft_limit, ttft_ratio * routing::prefill_seconds(prefill, prompt_tokens, 0));
  }
};

}  // namespace penstock::sim
