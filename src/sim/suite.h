// The balance suite: the default beside every alternative, each at its best setting, against the
// offline bound.
//
// Every policy is tuned by the same sweep (with and without the queue in front, how far ahead
// ranks are filled) on a shorter run; its highest load is then found on the whole one. Variants are
// the default as it ships under other conditions (suite_variants()): costlier steps, small caches,
// late or lost reports, several gateways, caches of engines instead of the cluster's, a slow store
// without and with loads through decode hosts. Beside them
// stand two scenes: what affinity gains where any rank can use any prefix, and one long prompt
// among short ones. The digest folds in the loads and the event digests of the last runs.
//
// What it costs: a run that can't meet the level any more is stopped, and the default is measured
// first, so that searches of the others begin near its result instead of at the bound, at one of
// the very loads that a search from the bound tries. With `plan.memory` nothing is run twice.
//
// Units: copies of the trace. Concurrency: parts are independent of each other, but for those that
// go first; `run_all` decides how many at a time, the result is the same. `plan.progress`,
// `plan.memory` and `done` are called from all of them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/efficiency.h"

namespace penstock::sim {

struct SuiteOptions {
  LoadPlan plan;
  ClusterOptions base;                     // cache, gateways, lag and so on, for all policies
  bool with_variants = false;              // and scenes
  std::vector<std::string> policies = {};  // beside the default; empty: all
  // Only these policies, variants and scenes; empty: all. An alternative under a variant's
  // conditions is VARIANT/POLICY, which is named or not run. kInvalidArgument for unknown ones.
  std::vector<std::string> only = {};
  // Runs all pieces of work, in any order; empty: one after the other.
  std::function<void(const std::vector<std::function<void()>>&)> run_all = {};
  std::function<void(std::string_view part, double efficiency)> done = {};
};

std::vector<std::string_view> suite_variants();
inline constexpr std::string_view kClairvoyant = "clairvoyant";
inline constexpr std::string_view kAffinityScene = "affinity";
inline constexpr std::string_view kLongPromptScene = "long-prompt";

struct PolicyResult {
  std::string policy;      // or the variant, or VARIANT/POLICY
  bool queue = false;      // with the queue in front
  double ahead_steps = 0;  // when there is one
  double copies = 0;
  double copies_swept = 0;  // at that setting, on the shorter run; not of variants
  double copies_alone = 0;  // without the queue, likewise
  double bound_copies = 0;
  double efficiency = 0;
  double vs_offline_benchmark = 0;
  double requests_per_second = 0;
  RunFigures figures;  // of the run at that load
};

// One load, three ways: the default with the cluster's cache, prefix affinity with it, and prefix
// affinity with a cache of its own in each engine.
struct AffinityScene {
  double copies = 0;
  RunFigures balancer;
  RunFigures affinity;
  RunFigures affinity_engine_caches;
};

// A prompt of 256K tokens among short ones that keep prefill ranks busy for 70 % of their time: the
// short ones' first tokens within 15 s of it, and the same without it.
struct LongPromptScene {
  double p99_with = 0;
  double p99_without = 0;
  double ratio() const { return p99_without > 0 ? p99_with / p99_without : 0; }
};
Result<LongPromptScene> long_prompt_scene(const routing::Profile& profile, std::uint64_t seed);

struct SuiteResult {
  double seconds = 0;  // measured; and of the sweep's runs
  double sweep_seconds = 0;
  double bound_copies = 0;
  double bound_requests_per_second = 0;
  double bound_hit_rate = 0;
  OfflineBenchmark benchmark;
  double clairvoyant_copies = 0;
  std::vector<PolicyResult> policies;  // the default first
  std::vector<PolicyResult> variants;
  std::optional<AffinityScene> affinity;
  std::optional<LongPromptScene> long_prompt;
  std::uint64_t digest = 0;
};

Result<SuiteResult> run_balance_suite(const routing::Profile& profile, const evaluate::Trace& trace,
                                      const SuiteOptions& options);

std::string to_json(const SuiteResult& result);

}  // namespace penstock::sim
