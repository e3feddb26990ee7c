// A cluster in virtual time: gateways, prefill and decode engines, a KV cache, and the policies.
//
// Every arrival is placed on a prefill rank by the prefill policy, loads its hit, waits and is
// computed; when its first chunk starts, the decode policy reserves a decode rank; when it is
// computed, its last chunk's KV is transferred (the rest went while it was computed) and it decodes
// to its end. The policies are the objects that the gateway runs; engines follow the profile's
// laws. Gateways take turns with arrivals and see ranks through late or lost reports.
//
// Invariants: one seed, one digest. Arrivals before `warmup` count for nothing but the state.
// Errors: kInvalidArgument for a profile that validate() refuses, unknown policies, no arrivals.
// Concurrency: one thread. Source: design.md section 9.
//
// Not modelled yet: failures, scale changes, zones, disk and host tiers apart, the queue in front.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/routing/decode_balancer.h"
#include "core/routing/policies.h"
#include "core/routing/prefill_balancer.h"
#include "core/routing/profile.h"
#include "evaluate/trace.h"
#include "sim/report.h"

namespace penstock::sim {

enum class CacheScope : std::uint8_t {
  kCluster,  // any rank can use any prefix, from shared storage
  kEngine,   // each prefill engine has a cache of its own, in host memory
};

struct ClusterOptions {
  std::string prefill_policy = "default";
  std::string decode_policy = "default";
  routing::PolicyOptions policy = {};
  routing::PrefillBalancerOptions prefill = {};
  routing::DecodeBalancerOptions decode = {};
  CacheScope cache_scope = CacheScope::kCluster;
  std::size_t cache_blocks = 0;  // of the trace's block size, in all; 0: no limit
  Duration cache_ttl = std::chrono::hours(24 * 3);
  std::size_t gateways = 1;
  Duration report_lag{};
  double report_loss = 0;
  Duration warmup = std::chrono::seconds(600);
  double ttft_limit_seconds = 2;  // or ttft_limit_ratio times the prompt's own cold prefill
  double ttft_limit_ratio = 3;
  std::uint64_t seed = 1;
  std::uint64_t events_max = 2'000'000'000;
};

Result<Report> simulate(const routing::Profile& profile, const evaluate::Trace& trace,
                        const std::vector<evaluate::Arrival>& arrivals,
                        const ClusterOptions& options);

}  // namespace penstock::sim
