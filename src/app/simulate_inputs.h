// What `penstock simulate` and `penstock plan` are given: profile, trace or workload, cluster,
// load.
//
// Errors: kInvalidArgument with the file or option at fault. Concurrency: one thread.
#pragma once

#include "app/options.h"
#include "base/result.h"
#include "core/routing/profile.h"
#include "evaluate/trace.h"
#include "sim/efficiency.h"

namespace penstock {

// With times that are left to us: an hour after 600 s for a suite, else 600 s after 120 s.
Options with_simulated_times(Options options);
// The file of --profile, else the one that comes with the program; --ranks and scales applied.
Result<routing::Profile> simulated_profile(const Options& options);
// The file (for a suite without one the conversation trace, where that is found), or a workload
// made up that lasts so long.
Result<evaluate::Trace> simulated_trace(const Options& options, Duration duration);
Result<sim::ClusterOptions> simulated_cluster(const Options& options);
// With progress on stderr when that is a terminal; end_progress() takes it away.
// Names all that a suite's runs depend on: the program, its inputs and options. One line.
Result<std::string> simulated_identity(const Options& options);
sim::LoadPlan simulated_load(const Options& options);
void end_progress(const sim::LoadPlan& plan);

}  // namespace penstock
