// The balance suite: the default beside every alternative, each at its best setting, against the
// offline bound.
//
// Every policy is tuned by the same sweep (with and without the queue in front, how far ahead
// ranks are filled) on a shorter run; its highest load is then found on the whole one. The digest
// folds in the loads and the event digests of the last runs.
//
// Units: copies of the trace. Concurrency: one thread.
#pragma once

#include <string>
#include <vector>

#include "sim/efficiency.h"

namespace penstock::sim {

struct SuiteOptions {
  LoadPlan plan;
  ClusterOptions base;  // cache, gateways, lag and so on, for all policies
  bool with_clairvoyant = true;
  std::vector<std::string> policies = {};  // beside the default; empty: all
};

struct PolicyResult {
  std::string policy;
  bool queue = false;      // with the queue in front
  double ahead_steps = 0;  // when there is one
  double copies = 0;
  double copies_alone = 0;  // without the queue, on the shorter run
  double efficiency = 0;
  double vs_offline_benchmark = 0;
  double requests_per_second = 0;
  Report report;  // of the run at that load
};

struct SuiteResult {
  double bound_copies = 0;
  double bound_requests_per_second = 0;
  double bound_hit_rate = 0;
  OfflineBenchmark benchmark;
  double clairvoyant_copies = 0;
  std::vector<PolicyResult> policies;  // the default first
  std::uint64_t digest = 0;
};

Result<SuiteResult> run_balance_suite(const routing::Profile& profile, const evaluate::Trace& trace,
                                      const SuiteOptions& options);

std::string to_json(const SuiteResult& result);

}  // namespace penstock::sim
