// What one run of a search comes to, and a memory of runs, so that a suite of hundreds of them can
// be interrupted and go on, and no run is made twice.
//
// A run is named by all that a search or a suite varies. What it does not vary (the trace, the rest
// of the profile, tiers, zones, changes) has to be the same for all that a memory holds; whoever
// keeps one longer than a process sees to that.
//
// Units: seconds. Errors: what can't be parsed is not known. Concurrency: values; the owner's two
// functions may be called from several threads at once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "core/routing/profile.h"
#include "sim/cluster.h"
#include "sim/report.h"

namespace penstock::sim {

// Of a run that met the level or was not stopped; of one that was stopped early only `met` counts.
struct RunFigures {
  bool met = false;
  std::uint64_t arrivals = 0;
  std::uint64_t refused = 0;
  double measured_seconds = 0;
  double served_share = 0;
  double ttft_p50 = 0;
  double ttft_p99 = 0;
  double gap_p99 = 0;
  double hit_rate = 0;
  double prefill_busy = 0;
  double prefill_balance = 0;   // most over mean, of outstanding seconds
  double requests_balance = 0;  // of decode
  double kv_balance = 0;
  std::uint64_t digest = 0;
  bool operator==(const RunFigures&) const = default;
};
RunFigures figures_of(const Report& report);
std::string print_run_figures(const RunFigures& figures);
std::optional<RunFigures> parse_run_figures(std::string_view text);
// Of other results that a memory holds; empty for what is no list of numbers.
std::string print_numbers(const std::vector<double>& numbers);
std::vector<double> parse_numbers(std::string_view text);

struct RunMemory {
  std::function<std::optional<std::string>(const std::string& key)> recall = {};
  std::function<void(const std::string& key, const std::string& value)> keep = {};
  explicit operator bool() const { return recall && keep; }
};
std::string run_key(const routing::Profile& profile, const ClusterOptions& options,
                    Duration duration, double copies);

}  // namespace penstock::sim
