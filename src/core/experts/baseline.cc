#include "core/experts/baseline.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace penstock::experts {
namespace {

struct Packed {
  std::vector<std::size_t> bin;   // of each item
  std::vector<std::size_t> rank;  // inside its bin, by arrival
};

// Puts items into bins of equal count: heaviest first, each into the lightest bin with room.
Packed pack(std::span<const float> weights, std::size_t bins) {
  const std::size_t n = weights.size();
  const std::size_t room = n / bins;
  Packed packed{std::vector<std::size_t>(n), std::vector<std::size_t>(n)};
  if (room == 1) {
    std::iota(packed.bin.begin(), packed.bin.end(), std::size_t{0});
    return packed;
  }
  // The original's sort is not stable: ties come out as libstdc++'s std::sort leaves pairs of
  // (weight, index) compared by weight alone. Any other order differs from it in a few slots.
  std::vector<std::pair<float, std::size_t>> order(n);
  for (std::size_t i = 0; i < n; ++i)
    order[i] = {weights[i], i};
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<float> load(bins);
  std::vector<std::size_t> count(bins);
  for (const auto& [weight, item] : order) {
    std::size_t best = bins;
    for (std::size_t bin = 0; bin < bins; ++bin)
      if (count[bin] < room && (best == bins || load[bin] < load[best])) best = bin;
    packed.bin[item] = best;
    packed.rank[item] = count[best]++;
    load[best] += weight;
  }
  return packed;
}

struct Copied {
  std::vector<std::size_t> expert;    // of each copy; the first ones are the experts themselves
  std::vector<std::uint32_t> counts;  // of each expert
};

Copied replicate(std::span<const float> weights, std::size_t copies) {
  Copied copied{std::vector<std::size_t>(weights.size()),
                std::vector<std::uint32_t>(weights.size(), 1)};
  std::iota(copied.expert.begin(), copied.expert.end(), std::size_t{0});
  while (copied.expert.size() < copies) {
    std::size_t hottest = 0;
    float most = -1;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const float each = weights[i] / static_cast<float>(copied.counts[i]);
      if (each <= most) continue;
      most = each;
      hottest = i;
    }
    copied.expert.push_back(hottest);
    ++copied.counts[hottest];
  }
  return copied;
}

}  // namespace

Result<Placement> plan_baseline(const Shape& shape, std::span<const double> loads) {
  TRY_STATUS(check(shape));
  if (loads.size() != shape.experts)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("experts: {} loads for {} experts", loads.size(), shape.experts));
  const std::size_t groups = shape.hierarchical() ? shape.groups : 1;
  const std::size_t nodes = shape.hierarchical() ? shape.nodes : 1;
  const std::size_t group_size = shape.experts / groups;
  const std::size_t groups_per_node = groups / nodes;
  const std::size_t node_experts = shape.experts / nodes;
  const std::size_t node_slots = shape.slots() / nodes;

  std::vector<float> group_load(groups);
  for (std::size_t expert = 0; expert < shape.experts; ++expert) {
    if (!(loads[expert] >= 0) || !std::isfinite(loads[expert]))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("experts: load {} of expert {}", loads[expert], expert));
    group_load[expert / group_size] += static_cast<float>(loads[expert]);
  }
  const Packed node_of = pack(group_load, nodes);
  std::vector<std::size_t> logical(shape.experts);  // by place within the nodes
  for (std::size_t group = 0; group < groups; ++group)
    for (std::size_t i = 0; i < group_size; ++i)
      logical[(node_of.bin[group] * groups_per_node + node_of.rank[group]) * group_size + i] =
          group * group_size + i;

  Placement placement{std::vector<ExpertIndex>(shape.slots())};
  for (std::size_t node = 0; node < nodes; ++node) {
    std::vector<float> weights(node_experts);
    for (std::size_t i = 0; i < node_experts; ++i)
      weights[i] = static_cast<float>(loads[logical[node * node_experts + i]]);
    const Copied copied = replicate(weights, node_slots);
    std::vector<float> each(node_slots);
    for (std::size_t copy = 0; copy < node_slots; ++copy)
      each[copy] =
          weights[copied.expert[copy]] / static_cast<float>(copied.counts[copied.expert[copy]]);
    const Packed gpu_of = pack(each, shape.gpus / nodes);
    for (std::size_t copy = 0; copy < node_slots; ++copy) {
      const std::size_t slot =
          node * node_slots + gpu_of.bin[copy] * shape.slots_per_gpu + gpu_of.rank[copy];
      placement.slots[slot] =
          static_cast<ExpertIndex>(logical[node * node_experts + copied.expert[copy]]);
    }
  }
  return placement;
}

}  // namespace penstock::experts
