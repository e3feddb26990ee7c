#include "engine/expert_layer.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace penstock::engine {
namespace {

std::unexpected<Error> impossible(std::string what) {
  return fail(ErrorCode::kInvalidArgument, std::move(what), "map");
}

// `seen` [experts] is scratch.
Status check_layer(const ExpertMap& map, std::size_t layer, std::vector<std::uint32_t>& seen) {
  const auto slots = std::span(map.slots).subspan(layer * map.layer_slots(), map.layer_slots());
  std::ranges::fill(seen, 0);  // else 1 + the rank that held it last
  for (std::size_t s = 0; s < slots.size(); ++s) {
    const auto rank = static_cast<std::uint32_t>(s / map.slots_per_rank);
    if (slots[s] >= map.experts) {
      return impossible(fmt::format("layer {}, slot {}: there is no expert {} of {}", layer, s,
                                    slots[s], map.experts));
    }
    if (std::exchange(seen[slots[s]], rank + 1) == rank + 1) {
      return impossible(
          fmt::format("layer {}: rank {} has two copies of expert {}", layer, rank, slots[s]));
    }
  }
  if (const auto missing = std::ranges::find(seen, 0U); missing != seen.end()) {
    return impossible(fmt::format("layer {}: expert {} is nowhere", layer, missing - seen.begin()));
  }
  return {};
}

}  // namespace

Status check_expert_map(const ExpertMap& map, std::uint32_t layers, std::uint32_t experts) {
  if (layers == 0 || experts == 0) {
    return fail(ErrorCode::kUnsupported, "the model has no routed experts", "map");
  }
  if (map.version == 0) return impossible("a map needs a version above 0");
  if (map.layers != layers || map.experts != experts) {
    return impossible(fmt::format("the map is for {} layers of {} experts, the model has {} of {}",
                                  map.layers, map.experts, layers, experts));
  }
  if (map.layer_slots() == 0 || map.slots.size() != layers * map.layer_slots()) {
    return impossible(fmt::format("{} slots for {} layers of {} ranks with {} slots",
                                  map.slots.size(), layers, map.ranks, map.slots_per_rank));
  }
  std::vector<std::uint32_t> seen(experts);
  for (std::size_t layer = 0; layer < layers; ++layer)
    TRY_STATUS(check_layer(map, layer, seen));
  return {};
}

ExpertLayer::ExpertLayer(std::uint32_t experts) : picks(experts) {
  std::vector<std::uint16_t> each(experts);
  std::iota(each.begin(), each.end(), std::uint16_t{0});
  place(each, experts);
}

void ExpertLayer::place(std::span<const std::uint16_t> wanted, std::uint32_t rank_count) {
  slots.assign(wanted.begin(), wanted.end());
  first_copy.assign(picks.size() + 1, 0);
  for (const std::uint16_t expert : slots)
    ++first_copy[expert + 1U];
  std::partial_sum(first_copy.begin(), first_copy.end(), first_copy.begin());
  copy_slots.resize(slots.size());
  std::vector<std::uint32_t> next(first_copy.begin(), first_copy.end() - 1);
  for (std::uint32_t s = 0; s < slots.size(); ++s)
    copy_slots[next[slots[s]]++] = s;
  rank_picks.assign(rank_count, 0);
}

void ExpertLayer::reset() {
  std::ranges::fill(picks, 0);
  std::ranges::fill(rank_picks, 0);
  picks_all = paced = 0;
}

void ExpertLayer::count_pass(std::span<const std::uint32_t> starts) {
  const std::size_t per_rank = slots.size() / rank_picks.size();
  std::uint64_t busiest = 0;
  for (std::size_t rank = 0; rank < rank_picks.size(); ++rank) {
    const std::uint64_t got = starts[(rank + 1) * per_rank] - starts[rank * per_rank];
    rank_picks[rank] += got;
    busiest = std::max(busiest, got);
  }
  picks_all += starts.back();
  paced += busiest * rank_picks.size();
}

}  // namespace penstock::engine
