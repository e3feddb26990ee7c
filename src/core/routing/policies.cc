#include "core/routing/policies.h"

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace penstock::routing {
namespace {

using Make = std::unique_ptr<PlacementPolicy> (*)(const PolicyOptions&);

constexpr std::array<std::string_view, 7> kNames{
    "random",           "round-robin",     "least-requests", "power-of-two",
    "session-affinity", "prefix-affinity", "linear-cost"};
constexpr std::array<Make, kNames.size()> kMakers{
    [](const PolicyOptions&) { return make_random(); },
    [](const PolicyOptions&) { return make_round_robin(); },
    [](const PolicyOptions&) { return make_least_requests(); },
    [](const PolicyOptions&) { return make_power_of_two(); },
    make_session_affinity,
    make_prefix_affinity,
    make_linear_cost};

}  // namespace

std::span<const std::string_view> policy_names() {
  return kNames;
}

Result<std::unique_ptr<PlacementPolicy>> make_policy(std::string_view name,
                                                     const PolicyOptions& options) {
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return kMakers[i](options);
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("unknown policy {}; there are {}", name, fmt::join(kNames, ", ")),
              "policy");
}

RequestSpread request_spread(std::span<const RankView> ranks, const Decision& decision) {
  RequestSpread spread{.least = std::numeric_limits<std::int64_t>::max(), .most = 0};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (decision.scores[i] == kNotCandidate) continue;
    const std::int64_t requests = ranks[i].running + ranks[i].waiting;
    spread.least = std::min(spread.least, requests);
    spread.most = std::max(spread.most, requests);
  }
  return spread;
}

bool imbalanced(const RequestSpread& spread, const PolicyOptions& options) {
  return spread.most - spread.least > options.imbalance_requests &&
         static_cast<double>(spread.most) >
             options.imbalance_ratio * static_cast<double>(spread.least);
}

}  // namespace penstock::routing
