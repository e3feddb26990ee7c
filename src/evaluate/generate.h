// Workloads made up: arrivals, lengths and shared prefixes by simple laws, where traces lack them.
//
// - poisson: independent requests, a quarter of which share one of eight system prompts.
// - bursts: the same, with five times the rate for 5 s about once a minute.
// - diurnal: the same, the rate a sine between 0.2 and 1.8 times the mean over the whole time.
// - agents: sessions of tool-calling turns; each turn's prompt is all that went before and some
//   thousand tokens more, so most of it can be a hit.
// - chat: sessions of a few turns with think times, contexts of some thousand tokens.
// - long: poisson, and one request in 500 has 256K to 768K tokens.
//
// Lengths are log-normal. The numbers are our choices, not measurements (docs/simulator.md).
//
// Invariants: one seed, one trace; arrivals never go back; blocks fit the lengths.
// Errors: kInvalidArgument for an unknown kind, a rate or duration that is not positive, or more
// than kTraceRequestsMax requests. Concurrency: pure.
#pragma once

#include <span>
#include <string_view>

#include "evaluate/trace.h"

namespace penstock::evaluate {

struct Workload {
  double requests_per_second = 10;
  double seconds = 3600;
  std::uint64_t seed = 1;
};

std::span<const std::string_view> workload_names();
Result<Trace> generate(std::string_view kind, const Workload& workload);

}  // namespace penstock::evaluate
