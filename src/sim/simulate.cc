// Checks what a run is asked for, and makes its policies.
#include <fmt/format.h>

#include "sim/cluster_run.h"

namespace penstock::sim {

using routing::Profile;

Result<Report> simulate(const Profile& profile, const evaluate::Trace& trace,
                        const std::vector<evaluate::Arrival>& arrivals,
                        const ClusterOptions& options) {
  TRY_STATUS(routing::validate(profile));
  if (arrivals.empty()) return fail(ErrorCode::kInvalidArgument, "simulate: no arrivals");
  if (options.gateways < 1 || options.gateways > 1024)
    return fail(ErrorCode::kInvalidArgument, "simulate: from 1 to 1024 gateways", "gateways");
  if (options.zones < 1 || options.zones > 64)
    return fail(ErrorCode::kInvalidArgument, "simulate: from 1 to 64 zones", "zones");
  if (options.tenants.size() > kTenantsMax)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("simulate: at most {} tenants", kTenantsMax), "tenants");
  for (const TenantShare& tenant : options.tenants)
    if (!(tenant.share > 0 && tenant.share <= 1e6 && tenant.weight > 0 && tenant.weight <= 1e6))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("simulate: tenant {} has share {} and weight {}; both have to be "
                              "above 0 and at most a million",
                              tenant.name, tenant.share, tenant.weight),
                  "tenants");
  if (options.prefill_on_decode &&
      (options.clairvoyant || options.cache_scope != CacheScope::kCluster ||
       options.host.blocks > 0 || options.disk.blocks > 0))
    return fail(ErrorCode::kInvalidArgument,
                "simulate: prompts on decode ranks find their hits in the cluster's store only, "
                "without caches of engines",
                "prefill_on_decode");
  std::unique_ptr<routing::PlacementPolicy> prefill;
  routing::PrefillBalancer* balancer = nullptr;
  if (options.prefill_policy == "default") {
    routing::PrefillBalancerOptions prefill_options = options.prefill;
    prefill_options.step_seconds = profile.chunk_budget_seconds;
    auto made = std::make_unique<routing::PrefillBalancer>(prefill_options);
    balancer = made.get();
    prefill = std::move(made);
  } else {
    TRY(prefill, routing::make_policy(options.prefill_policy, options.policy));
  }
  std::unique_ptr<routing::PlacementPolicy> decode;
  if (options.decode_policy == "default") {
    decode = std::make_unique<routing::DecodeBalancer>(options.decode);
  } else {
    TRY(decode, routing::make_policy(options.decode_policy, options.policy));
  }
  Cluster cluster(profile, trace, arrivals, options, std::move(prefill), std::move(decode),
                  balancer);
  return cluster.run();
}

}  // namespace penstock::sim
