// How large a deployment has to be: ranks of both pools, KV store, interconnect, cost.
//
// The demand of a load is measured first (how much is left to compute after hits, how many answers
// run at once). From it follow closed forms: prefill ranks from the work of uncached tokens, decode
// ranks from running requests by Little's law. Hits are those that the cache's tiers (the store,
// engines' memory and disk, each with its capacity and TTL) hold between them. Then the simulator
// decides: the fewest prefill ranks with decode ranks to spare, and with those the fewest decode
// ranks, each by bisection to one host (or one engine). Closed forms know means only; what the
// simulated sizes have more is for bursts, waiting and uneven batches, what they have less is work
// of the few that may miss the level.
//
// Pools grow by hosts. Ranks that step together are as many as the profile says at most: a smaller
// pool is one group, a larger one several groups of equal size (the width of EP and DP).
//
// The KV store holds what was used within its TTL. Its size is the largest the load showed, or new
// bytes a second times the TTL when that is longer than the load.
//
// Invariants: one seed, one plan; a plan's sizes meet the level in the simulator, and less load in
// the same plan's table never needs more. Units: ranks (GPUs), seconds, bytes.
// Errors: kInvalidArgument for profiles that validate() refuses, requests longer than the engines
// take, a decode step that is too slow by itself, and levels that no number of ranks meets.
// Concurrency: one thread.
#pragma once

#include <string>
#include <vector>

#include "sim/efficiency.h"

namespace penstock::sim {

struct PlanOptions {
  LoadPlan load = {};           // how long it is looked at; `tolerance` is not used
  double copies = 1;            // of the trace
  ClusterOptions cluster = {};  // policies, cache and service level
  double gpu_hour_price = 0;
  bool sensitivities = true;
};

// What the measured part of a load asks for, a second of it.
struct Demand {
  double seconds = 0;
  double requests = 0;
  double prompt_tokens = 0;
  double uncached_tokens = 0;
  double output_tokens = 0;
  double prefill_work = 0;       // rank-seconds, of the uncached tokens alone
  double decode_work = 0;        // rank-seconds, of tokens and their KV alone
  double requests_running = 0;   // at one token in tau
  double kv_tokens_running = 0;  // likewise
  double kv_new_bytes = 0;       // blocks that are not stored yet
  double kv_read_bytes = 0;      // hits in the cluster's store
  double load_seconds = 0;       // of a link, for hits in all tiers
  double kv_peak_over_mean = 1;  // prompt tokens of the busiest ten seconds
  double kv_stored_bytes = 0;    // not a second
  double hit_rate() const { return prompt_tokens > 0 ? 1 - uncached_tokens / prompt_tokens : 0; }
};
Demand demand_of(const routing::Profile& profile, const evaluate::Trace& trace,
                 const std::vector<evaluate::Arrival>& arrivals, const ClusterOptions& options);

// Ranks at full use, not rounded.
struct ClosedForm {
  double prefill = 0;            // the most of the next two
  double prefill_for_work = 0;   // steps of the chunk budget
  double prefill_for_loads = 0;  // hosts' links
  double decode = 0;             // the most of the next three
  double decode_for_work = 0;    // steps of tau
  double decode_for_kv = 0;      // KV pools
  double decode_for_requests = 0;
};
ClosedForm closed_form(const routing::Profile& profile, const Demand& demand, const Slo& slo);

struct PoolSize {
  std::int64_t ranks = 0;
  std::int64_t group_ranks = 0;  // EP and DP width
};
// The least size of at least so many ranks: whole hosts, and equal groups of whole hosts (or
// parts of one).
PoolSize pool_size(const routing::PoolProfile& pool, std::int64_t ranks);

struct PlanCase {
  std::string name;
  Demand demand;
  ClosedForm closed;
  PoolSize prefill;
  PoolSize decode;
  std::int64_t gpus() const { return prefill.ranks + decode.ranks; }
};

// Bytes a second of eight GPUs in the busiest ten seconds.
struct Interconnect {
  double prefill_in = 0;   // hits
  double prefill_out = 0;  // prompts' KV to decode, new blocks to the store
  double decode_in = 0;
};

struct Plan {
  std::string profile;
  Slo slo;
  PlanCase base;
  Report report;  // of the planned size
  Interconnect per_eight_gpus;
  double kv_read_bytes = 0;  // a second, in the busiest ten; the store's write rate likewise
  double kv_write_bytes = 0;
  double kv_ttl_seconds = 0;
  double gpu_hour_price = 0;
  std::vector<PlanCase> sensitivities;

  double cost_per_hour(const PlanCase& at) const {
    return gpu_hour_price * static_cast<double>(at.gpus());
  }
};

Result<Plan> plan_deployment(const routing::Profile& profile, const evaluate::Trace& trace,
                             const PlanOptions& options);

std::string to_json(const Plan& plan);

}  // namespace penstock::sim
