// A cluster in virtual time: gateways, prefill and decode engines, a KV cache, and the policies.
//
// Every arrival waits in its gateway's queue until a prefill rank is ready for it (or is placed at
// once, without a queue), loads its hit, waits and is computed; when its first chunk starts, the
// decode policy reserves a decode rank; when it is computed, its last chunk's KV is transferred
// (the rest went while it was computed) and it decodes to its end. The policies are the objects
// that the gateway runs; engines follow the profile's laws. Gateways take turns with arrivals and
// see ranks through late or lost reports, and the cache through late or lost events.
//
// Engines can fail, leave and come back. What a failed engine had is placed again: prompts are
// computed anew, answers with what they have already. Gateways notice after `notice`.
//
// Invariants: one seed, one digest. Arrivals before `warmup` count for nothing but the state.
// Errors: kInvalidArgument for a profile that validate() refuses, unknown policies, no arrivals,
// changes of engines that are not there, tenants without a share or a weight.
// Concurrency: one thread. Source: design.md section 9.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/routing/decode_balancer.h"
#include "core/routing/policies.h"
#include "core/routing/prefill_balancer.h"
#include "core/routing/profile.h"
#include "evaluate/trace.h"
#include "sim/front_line.h"
#include "sim/report.h"
#include "sim/slo.h"
#include "sim/tiered_cache.h"

namespace penstock::sim {

enum class CacheScope : std::uint8_t {
  kCluster,  // any rank can use any prefix, from shared storage
  kEngine,   // no store: each prefill engine has a cache of its own, in host memory
};

enum class Pool : std::uint8_t { kPrefill, kDecode };
enum class ChangeKind : std::uint8_t {
  kFail,   // what it has is lost
  kDrain,  // takes nothing more, ends what it has
  kJoin,   // empty and ready, after either
};
struct EngineChange {
  Duration at{};
  Pool pool = Pool::kPrefill;
  std::size_t engine = 0;
  ChangeKind kind = ChangeKind::kFail;
};

// Prompts wait in front and go to a rank only when it has less than this to do.
struct FrontQueue {
  bool on = true;
  double ahead_steps = 2;  // of the profile's chunk budget
  // From leaving the queue to the end of the prompt's last step, own compute apart.
  double margin_steps = 2.5;
  routing::OnTimeOptions order = {};
};

struct ClusterOptions {
  std::string prefill_policy = "default";
  std::string decode_policy = "default";
  routing::PolicyOptions policy = {};
  routing::PrefillBalancerOptions prefill = {};
  routing::DecodeBalancerOptions decode = {};
  FrontQueue front = {};
  std::vector<TenantShare> tenants = {};  // of the queue in front; none: all are one tenant's
  CacheScope cache_scope = CacheScope::kCluster;
  std::size_t cache_blocks = 0;  // of the trace's block size, in all; 0: no limit
  // More tiers of every prefill engine: host memory beside the cluster's store, and disk.
  CacheTier host = {};
  CacheTier disk = {};
  Duration cache_ttl = std::chrono::hours(24 * 3);
  std::size_t gateways = 1;
  Duration report_lag{};
  double report_loss = 0;
  // An engine with nothing to do repeats its report so often, so that a lost one is made good; a
  // busy one reports at the end of each step. 0: it does not.
  Duration heartbeat = std::chrono::milliseconds(200);
  Duration event_lag{};  // of the cache's events
  double event_loss = 0;
  // Prompts may also be computed on the decode rank that answers them, in what its steps leave of
  // `decode_step_seconds`; the prefill policy sees decode ranks as slower ones beside its own. Only
  // with the cluster's store alone, and not of the clairvoyant schedule.
  bool prefill_on_decode = false;
  // So that an answer of a few tokens, which waits for a step and then joins one, is within 50 ms a
  // token on average; with 42 ms it is not.
  double decode_step_seconds = 0.036;
  // Decode hosts with spare bandwidth read hits from the store too, and pass them on.
  bool loads_through_decode = false;
  std::size_t zones = 1;  // prefill engines take turns in them; decode engines likewise
  std::vector<EngineChange> changes = {};
  Duration notice = std::chrono::seconds(2);
  Duration warmup = std::chrono::seconds(600);
  Slo slo = {};
  // The schedule that knows everything (sim/efficiency.h): engines take prompts themselves, latest
  // start first, hits need no loading, and prompts of at least this much work are refused.
  bool clairvoyant = false;
  double refuse_work = 0;  // seconds of one rank; 0: none
  // Stop as soon as more arrivals are lost than the level allows.
  bool stop_early = false;
  std::uint64_t seed = 1;
  std::uint64_t events_max = 2'000'000'000;
  // Called now and then with the share of the load that has arrived.
  std::function<void(double)> progress = {};
};

inline constexpr std::size_t kTenantsMax = 64;

// The tiers of its cache, by kCacheTiers, for a load that ends then.
std::array<CacheTier, kCacheTiers.size()> cache_tiers(const ClusterOptions& options,
                                                      Instant last_arrival);

Result<Report> simulate(const routing::Profile& profile, const evaluate::Trace& trace,
                        const std::vector<evaluate::Arrival>& arrivals,
                        const ClusterOptions& options);

}  // namespace penstock::sim
