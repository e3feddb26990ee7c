// The list of placement policies, with what can be tuned of each.
//
// The alternatives are kept for comparison with the balancers (prefill_balancer.h,
// decode_balancer.h): each is one file, and the simulator sweeps the same options of all and shows
// each at its best.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"
#include "core/routing/policy.h"

namespace penstock::routing {

struct PolicyOptions {
  // Affinity gives way when the most loaded rank has this many requests more than the least loaded
  // one, and this many times as many.
  std::int64_t imbalance_requests = 64;
  double imbalance_ratio = 1.5;
  // A prefix must cover this part of the prompt to attract.
  double prefix_share_min = 0.3;
  // Linear cost = prefill_weight * (outstanding + own compute) + decode_weight * KV share; a
  // temperature above 0 draws instead of taking the least.
  double prefill_weight = 1;
  double decode_weight = 1;
  double temperature = 0;
};

std::unique_ptr<PlacementPolicy> make_random();
std::unique_ptr<PlacementPolicy> make_round_robin();
std::unique_ptr<PlacementPolicy> make_least_requests();
std::unique_ptr<PlacementPolicy> make_power_of_two();
std::unique_ptr<PlacementPolicy> make_session_affinity(const PolicyOptions& options);
std::unique_ptr<PlacementPolicy> make_prefix_affinity(const PolicyOptions& options);
std::unique_ptr<PlacementPolicy> make_linear_cost(const PolicyOptions& options);

// Names of the alternatives, in the order they are listed.
std::span<const std::string_view> policy_names();
// kInvalidArgument, with the list, for a name that is not in it.
Result<std::unique_ptr<PlacementPolicy>> make_policy(std::string_view name,
                                                     const PolicyOptions& options);

// What affinity's guard looks at.
struct RequestSpread {
  std::int64_t least = 0;
  std::int64_t most = 0;
};
RequestSpread request_spread(std::span<const RankView> ranks, const Decision& decision);
bool imbalanced(const RequestSpread& spread, const PolicyOptions& options);

}  // namespace penstock::routing
