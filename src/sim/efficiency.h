// How good a policy is: the highest load at which it meets the SLO, over the highest load that
// anybody could serve (sim/offline_bound.h).
//
// Load is a number of copies of the trace laid over each other (evaluate/trace.h); highest loads
// are found by bisection. Beside the bound stand the best schedule found that knows everything
// (how loose is the bound?) and the steady-state offline benchmark: saturated pools with level
// batches, where nobody arrives, waits or is given up.
//
// Units: copies of the trace. Concurrency: one thread.
#pragma once

#include <functional>

#include "sim/cluster.h"
#include "sim/offline_bound.h"
#include "sim/run_memory.h"

namespace penstock::sim {

struct LoadPlan {
  Duration duration = std::chrono::seconds(4200);  // warm-up included
  Duration warmup = std::chrono::seconds(600);
  std::uint64_t seed = 1;
  double tolerance = 0.01;
  // Called with what is being tried.
  std::function<void(std::string_view what, double copies)> progress = {};
  RunMemory memory = {};
};

std::vector<evaluate::Arrival> arrivals_of(const evaluate::Trace& trace, const LoadPlan& plan,
                                           double copies);

// The highest load within `tolerance` that `meets` accepts, from `from` downwards (upwards when
// that is accepted); 0 when it accepts none. With a hint the search begins at the first of the same
// steps that is above it, and goes up from there when that one is accepted.
Result<double> highest_load(const std::function<Result<bool>(double)>& meets, double from,
                            double tolerance, double hint = 0);

Result<double> bound_of(const routing::Profile& profile, const evaluate::Trace& trace,
                        const LoadPlan& plan, const BoundOptions& options);

struct OfflineBenchmark {
  double copies = 0;  // of both pools; more than prefill's when decode ranks compute prompts too
  double prefill_copies = 0;  // of each pool alone
  double decode_copies = 0;
};
OfflineBenchmark offline_benchmark(const routing::Profile& profile, const evaluate::Trace& trace,
                                   const LoadPlan& plan, const Slo& slo, double at_copies,
                                   bool on_decode_ranks = false);

// One run at a load, as far as needed to say whether it meets the level; from the plan's memory
// when it has it. `options` say which policy; their warm-up and seed are the plan's.
Result<RunFigures> run_at(const routing::Profile& profile, const evaluate::Trace& trace,
                          const LoadPlan& plan, ClusterOptions options, double copies);

struct FoundLoad {
  double copies = 0;
  RunFigures figures;  // of the run at that load; nothing when there is none
};
Result<FoundLoad> find_load(const routing::Profile& profile, const evaluate::Trace& trace,
                            const LoadPlan& plan, const ClusterOptions& options, double from,
                            double hint = 0);
// Its copies alone.
Result<double> policy_load(const routing::Profile& profile, const evaluate::Trace& trace,
                           const LoadPlan& plan, const ClusterOptions& options, double from);

// The best of several schedules by engines that know deadlines, costs and the future's 1 %.
Result<double> clairvoyant_load(const routing::Profile& profile, const evaluate::Trace& trace,
                                const LoadPlan& plan, const Slo& slo, double guess);

}  // namespace penstock::sim
