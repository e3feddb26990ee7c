// What a simulation found, and its JSON.
//
// Concurrency: values.
#pragma once

#include <cstdint>
#include <string>

#include "sim/histogram.h"

namespace penstock::sim {

// Max over mean across ranks, sampled every second and averaged.
struct Balance {
  double sum = 0;
  std::uint64_t samples = 0;
  double mean() const { return samples == 0 ? 1 : sum / static_cast<double>(samples); }
};

struct Report {
  std::string prefill_policy;
  std::string decode_policy;
  std::uint64_t arrivals = 0;  // in the measured time
  std::uint64_t refused = 0;
  std::uint64_t finished = 0;
  std::uint64_t met = 0;  // first token within its limit
  Histogram ttft;         // seconds
  Histogram gaps;         // seconds between tokens
  double prompt_tokens = 0;
  double hit_tokens = 0;
  double output_tokens = 0;
  Balance prefill_quota;  // outstanding seconds of prefill ranks
  Balance decode_requests;
  Balance decode_kv;
  double prefill_busy = 0;  // share of the time that prefill engines stepped
  std::uint64_t preemptions = 0;
  double measured_seconds = 0;
  std::uint64_t events = 0;
  std::uint64_t digest = 0;

  // 99 % of all arrivals have their first token in time, and 99 % of gaps are at most `tau`.
  double ttft_share() const;
  bool meets_slo(double tau_seconds) const;
  double hit_rate() const { return prompt_tokens > 0 ? hit_tokens / prompt_tokens : 0; }
};

std::string to_json(const Report& report);

}  // namespace penstock::sim
