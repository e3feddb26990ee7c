// Measures what the embedded engine costs on this machine, for a profile (core/routing/profile.h).
//
// Prefill: chunks of many lengths after contexts of many lengths, each alone in its pass. Decode:
// steps of many batch sizes over many KV lengths, every sequence with a prompt of its own. Of each
// point the fastest of some passes counts: what the engine takes when nothing else disturbs it. The
// laws are fitted to the points by base/online_fit, the fitter of the running service.
//
// Units: seconds, tokens, bytes. Errors: what the engine refuses; kInvalidArgument when its pool or
// context is too small for two points. Concurrency: one thread calls; the engine has its own.
// Source: docs/design/0007-cost-models.md.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "core/routing/cost_model.h"
#include "engine/engine.h"

namespace penstock {

// One pass. Prefill: `work` fresh tokens after `context`; decode: `work` sequences that attend to
// `context` tokens together.
struct CostPoint {
  std::int64_t work = 0;
  std::int64_t context = 0;
  double seconds = 0;    // measured
  double predicted = 0;  // by the fitted law
};

struct EngineCosts {
  std::vector<CostPoint> prefill_points;
  std::vector<CostPoint> step_points;
  PrefillCoefficients prefill;
  routing::StepCoefficients step;
  double prefill_error = 0;  // mean of |log(measured / predicted)|
  double step_error = 0;
};

struct ProfileEffort {
  std::uint32_t passes = 7;               // at each point
  std::int64_t step_tokens_max = 32'768;  // KV tokens of a decode point
};

// `progress` is told how many of how many points are done.
Result<EngineCosts> measure_costs(engine::Engine& engine, const ProfileEffort& effort,
                                  const std::function<void(std::size_t, std::size_t)>& progress);

// Bytes per second at which KV slices are copied and checked, out of cache.
double measure_copy_rate(std::size_t slice_bytes);

}  // namespace penstock
