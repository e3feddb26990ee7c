// What a simulation found, and its JSON.
//
// Concurrency: values.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/histogram.h"
#include "sim/slo.h"

namespace penstock::sim {

// Max over mean across ranks, sampled every second and averaged.
struct Balance {
  double sum = 0;
  std::uint64_t samples = 0;
  void add(std::span<const float> ranks);
  double mean() const { return samples == 0 ? 1 : sum / static_cast<double>(samples); }
};

// The state at one moment, for plots.
struct Sample {
  double at_seconds = 0;
  std::vector<float> prefill_seconds;  // outstanding, of each rank
  std::vector<float> decode_requests;
  std::vector<float> decode_kv;
  std::size_t queued = 0;  // in front, those put off included
  std::size_t put_off = 0;
  double prompt_tokens = 0;  // so far
  double hit_tokens = 0;
};
inline constexpr std::size_t kSamplesMax = 1024;

// What one of several tenants got.
struct TenantReport {
  std::string name;
  std::uint64_t arrivals = 0;  // in the measured time, as below
  std::uint64_t refused = 0;
  std::uint64_t first_in_time = 0;
  double prefill_seconds = 0;  // predicted work that left the queue in the measured time
  Histogram ttft;
  double in_time_share() const;  // of all its arrivals
};

struct Report {
  std::string prefill_policy;
  std::string decode_policy;
  Slo slo;
  std::uint64_t arrivals = 0;  // in the measured time
  std::uint64_t refused = 0;
  std::uint64_t finished = 0;
  std::uint64_t unfinished = 0;     // neither finished nor refused
  std::uint64_t first_in_time = 0;  // first token within its limit
  std::uint64_t met = 0;            // and the rest of the answer fast enough
  Histogram ttft;                   // seconds
  Histogram gaps;                   // seconds between tokens
  std::uint64_t slow_gaps = 0;      // longer than tau
  double prompt_tokens = 0;
  double hit_tokens = 0;
  std::array<std::uint64_t, 3> hit_blocks{};  // from host memory, disk, the cluster's store
  std::uint64_t loads_through_decode = 0;     // hits of which a decode host read a part
  std::uint64_t prompts_on_decode = 0;        // computed on decode ranks
  double output_tokens = 0;
  Balance prefill_quota;  // outstanding seconds of prefill ranks
  Balance decode_requests;
  Balance decode_kv;
  double prefill_busy = 0;  // share of the time that prefill engines stepped
  std::uint64_t preemptions = 0;
  std::uint64_t failures = 0;     // of engines
  std::uint64_t placed_anew = 0;  // because of them
  double measured_seconds = 0;
  std::uint64_t events = 0;
  std::uint64_t digest = 0;
  std::vector<Sample> samples;
  std::uint64_t samples_seen = 0;
  std::uint64_t sample_every = 1;  // seconds between samples

  std::vector<TenantReport> tenants;

  bool stopped_early = false;  // the level could not be met any more: all else is incomplete

  void add_gap(double seconds, std::uint64_t times = 1);
  // Of all arrivals.
  double first_in_time_share() const;
  double served_share() const;
  bool meets_slo() const;
  double hit_rate() const { return prompt_tokens > 0 ? hit_tokens / prompt_tokens : 0; }
};

std::string to_json(const Report& report);

}  // namespace penstock::sim
