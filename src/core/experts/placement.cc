#include "core/experts/placement.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace penstock::experts {

Status check(const Shape& s) {
  const auto refuse = [](std::string message, std::string field) {
    return Status(fail(ErrorCode::kInvalidArgument, "experts: " + std::move(message), field));
  };
  if (s.experts < 1 || s.experts > kExpertsMax)
    return refuse(fmt::format("{} experts: from 1 to {} are supported", s.experts, kExpertsMax),
                  "experts");
  if (s.gpus < 1 || s.slots_per_gpu < 1 || s.gpus > kSlotsMax || s.slots_per_gpu > kSlotsMax ||
      s.slots() > kSlotsMax)
    return refuse(fmt::format("{} GPUs x {} slots: from 1 to {} slots are supported", s.gpus,
                              s.slots_per_gpu, kSlotsMax),
                  "gpus");
  if (s.slots() < s.experts)
    return refuse(fmt::format("{} slots are too few for {} experts", s.slots(), s.experts),
                  "slots_per_gpu");
  if (s.groups < 1 || s.experts % s.groups != 0)
    return refuse(fmt::format("{} groups do not divide {} experts", s.groups, s.experts), "groups");
  if (s.nodes < 1 || s.gpus % s.nodes != 0)
    return refuse(fmt::format("{} nodes do not divide {} GPUs", s.nodes, s.gpus), "nodes");
  return {};
}

std::vector<std::uint32_t> replica_counts(const Placement& placement, std::size_t experts) {
  std::vector<std::uint32_t> counts(experts);
  for (const ExpertIndex expert : placement.slots)
    ++counts[expert];
  return counts;
}

std::vector<double> gpu_loads(const Shape& shape, const Placement& placement,
                              std::span<const double> loads) {
  const std::vector<std::uint32_t> counts = replica_counts(placement, shape.experts);
  std::vector<double> gpus(shape.gpus);
  for (std::size_t slot = 0; slot < placement.slots.size(); ++slot) {
    const ExpertIndex expert = placement.slots[slot];
    gpus[slot / shape.slots_per_gpu] += loads[expert] / counts[expert];
  }
  return gpus;
}

double max_over_mean(std::span<const double> gpu_loads) {
  double sum = 0;
  double most = 0;
  for (const double load : gpu_loads) {
    sum += load;
    most = std::max(most, load);
  }
  return sum > 0 ? most * static_cast<double>(gpu_loads.size()) / sum : 1;
}

double max_over_mean(const Shape& shape, const Placement& placement,
                     std::span<const double> loads) {
  return max_over_mean(gpu_loads(shape, placement, loads));
}

std::size_t doubled_copies(const Shape& shape, const Placement& placement) {
  std::size_t doubled = 0;
  std::vector<std::size_t> last(shape.experts, shape.gpus);  // GPU that held it last
  for (std::size_t slot = 0; slot < placement.slots.size(); ++slot) {
    std::size_t& gpu = last[placement.slots[slot]];
    if (gpu == slot / shape.slots_per_gpu) ++doubled;
    gpu = slot / shape.slots_per_gpu;
  }
  return doubled;
}

std::size_t moved_copies(const Shape& shape, const Placement& from, const Placement& to) {
  std::size_t moved = 0;
  std::vector<std::size_t> held(shape.experts, shape.gpus);
  std::vector<std::size_t> wanted(shape.experts, shape.gpus);
  for (std::size_t gpu = 0; gpu < shape.gpus; ++gpu) {
    const std::size_t first = gpu * shape.slots_per_gpu;
    for (std::size_t s = first; s < first + shape.slots_per_gpu; ++s)
      held[from.slots[s]] = gpu;
    // A second copy of an expert on one GPU is the same weights.
    for (std::size_t s = first; s < first + shape.slots_per_gpu; ++s) {
      const ExpertIndex expert = to.slots[s];
      if (held[expert] != gpu && wanted[expert] != gpu) ++moved;
      wanted[expert] = gpu;
    }
  }
  return moved;
}

Status check(const Shape& shape, const Placement& placement, Copies copies) {
  TRY_STATUS(check(shape));
  if (placement.slots.size() != shape.slots())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("experts: a placement of {} slots where {} are needed",
                            placement.slots.size(), shape.slots()));
  std::vector<bool> placed(shape.experts);
  for (const ExpertIndex expert : placement.slots) {
    if (expert >= shape.experts)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("experts: expert {} of {}", expert, shape.experts));
    placed[expert] = true;
  }
  for (std::size_t expert = 0; expert < placed.size(); ++expert)
    if (!placed[expert])
      return fail(ErrorCode::kInvalidArgument, fmt::format("experts: {} has no slot", expert));
  if (shape.hierarchical()) {
    const std::size_t group_size = shape.experts / shape.groups;
    const std::size_t node_slots = shape.slots() / shape.nodes;
    std::vector<std::size_t> node_of(shape.groups, shape.nodes);
    for (std::size_t slot = 0; slot < placement.slots.size(); ++slot) {
      const std::size_t group = placement.slots[slot] / group_size;
      const std::size_t node = slot / node_slots;
      if (node_of[group] != shape.nodes && node_of[group] != node)
        return fail(
            ErrorCode::kInvalidArgument,
            fmt::format("experts: group {} is on nodes {} and {}", group, node_of[group], node));
      node_of[group] = node;
    }
  }
  if (copies == Copies::kDistinct && doubled_copies(shape, placement) != 0)
    return fail(ErrorCode::kInvalidArgument, "experts: a GPU holds two copies of one expert");
  return {};
}

namespace {

// Pairs of (current GPU, wanted GPU) by falling number of common experts, greedily: within 1/2 of
// the best assignment, and exact when placements are nearly equal, which is when it matters.
std::vector<std::size_t> match_gpus(const Shape& shape, const Placement& current,
                                    const Placement& wanted) {
  struct Overlap {
    std::size_t common;
    std::size_t from;
    std::size_t to;
  };
  std::vector<std::vector<std::size_t>> holders(shape.experts);
  for (std::size_t slot = 0; slot < current.slots.size(); ++slot) {
    auto& gpus = holders[current.slots[slot]];
    const std::size_t gpu = slot / shape.slots_per_gpu;
    if (gpus.empty() || gpus.back() != gpu) gpus.push_back(gpu);
  }
  const std::size_t node_gpus = shape.hierarchical() ? shape.gpus / shape.nodes : shape.gpus;
  std::vector<Overlap> overlaps;
  std::vector<std::size_t> common(shape.gpus);
  for (std::size_t to = 0; to < shape.gpus; ++to) {
    std::vector<std::size_t> touched;
    for (std::size_t s = 0; s < shape.slots_per_gpu; ++s)
      for (const std::size_t from : holders[wanted.slots[to * shape.slots_per_gpu + s]])
        if (from / node_gpus == to / node_gpus && common[from]++ == 0) touched.push_back(from);
    for (const std::size_t from : touched)
      overlaps.push_back({std::exchange(common[from], 0), from, to});
  }
  std::ranges::sort(overlaps, [](const Overlap& a, const Overlap& b) {
    if (a.common != b.common) return a.common > b.common;
    // Keeping one's number is the tie-break that moves nothing by accident.
    if ((a.from == a.to) != (b.from == b.to)) return a.from == a.to;
    return std::pair(a.from, a.to) < std::pair(b.from, b.to);
  });
  std::vector<std::size_t> wanted_of(shape.gpus, shape.gpus);  // by current GPU
  std::vector<bool> taken(shape.gpus);
  for (const Overlap& o : overlaps) {
    if (wanted_of[o.from] != shape.gpus || taken[o.to]) continue;
    wanted_of[o.from] = o.to;
    taken[o.to] = true;
  }
  for (std::size_t from = 0; from < shape.gpus; ++from) {
    if (wanted_of[from] != shape.gpus) continue;
    std::size_t to = from / node_gpus * node_gpus;
    while (taken[to])
      ++to;
    wanted_of[from] = to;
    taken[to] = true;
  }
  return wanted_of;
}

}  // namespace

Placement relabelled(const Shape& shape, const Placement& current, const Placement& wanted) {
  const std::vector<std::size_t> wanted_of = match_gpus(shape, current, wanted);
  const std::size_t n = shape.slots_per_gpu;
  Placement result{std::vector<ExpertIndex>(wanted.slots.size())};
  for (std::size_t gpu = 0; gpu < shape.gpus; ++gpu) {
    const auto held = std::span(current.slots).subspan(gpu * n, n);
    const auto from = std::span(wanted.slots).subspan(wanted_of[gpu] * n, n);
    const auto out = std::span(result.slots).subspan(gpu * n, n);
    std::vector<ExpertIndex> arriving(from.begin(), from.end());
    std::vector<bool> filled(n);
    for (std::size_t s = 0; s < n; ++s) {  // what stays keeps its slot
      const auto at = std::ranges::find(arriving, held[s]);
      if (at == arriving.end()) continue;
      out[s] = *at;
      filled[s] = true;
      arriving.erase(at);
    }
    std::size_t next = 0;
    for (std::size_t s = 0; s < n; ++s)
      if (!filled[s]) out[s] = arriving[next++];
    ENSURE(next == arriving.size());
  }
  return result;
}

// A node's experts are dealt to its slots in order, round and round: two copies of one expert are a
// whole round apart, and a GPU's slots span at most one round.
Placement first_placement(const Shape& shape) {
  const std::size_t nodes = shape.hierarchical() ? shape.nodes : 1;
  const std::size_t gpus = shape.gpus / nodes;
  const std::size_t experts = shape.experts / nodes;
  Placement placement{std::vector<ExpertIndex>(shape.slots())};
  for (std::size_t node = 0; node < nodes; ++node)
    for (std::size_t gpu = 0; gpu < gpus; ++gpu)
      for (std::size_t s = 0; s < shape.slots_per_gpu; ++s) {
        const std::size_t dealt = gpu * shape.slots_per_gpu + s;
        placement.slots[(node * gpus + gpu) * shape.slots_per_gpu + s] =
            static_cast<ExpertIndex>(node * experts + dealt % experts);
      }
  return placement;
}

LogicalMap logical_to_physical(const Placement& placement, std::size_t experts) {
  const std::vector<std::uint32_t> counts = replica_counts(placement, experts);
  LogicalMap map;
  for (const std::uint32_t count : counts)
    map.copies_max = std::max<std::size_t>(map.copies_max, count);
  map.slots.assign(experts * map.copies_max, -1);
  std::vector<std::size_t> next(experts);
  for (std::size_t slot = 0; slot < placement.slots.size(); ++slot) {
    const ExpertIndex expert = placement.slots[slot];
    map.slots[expert * map.copies_max + next[expert]++] = static_cast<std::int32_t>(slot);
  }
  return map;
}

}  // namespace penstock::experts
