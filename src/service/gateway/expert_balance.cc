#include "service/gateway/expert_balance.h"

#include <algorithm>
#include <numeric>

namespace penstock::gateway {
namespace {

// A window counts for so much of the one after it: the last five or so decide.
constexpr double kKept = 0.8;

std::uint64_t total(const std::vector<std::uint64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

}  // namespace

std::optional<double> ExpertBalance::Sums::ratio() const {
  if (!(picks > 0)) return std::nullopt;
  return std::max(1.0, paced / picks);
}

void ExpertBalance::watch(std::span<const WorkerView> workers) {
  for (auto& [rank, seen] : seen_)
    seen.there = false;
  for (auto& [name, sums] : groups_)
    sums = {};
  for (const WorkerView& worker : workers) {
    if (!worker.connected) continue;
    for (std::uint32_t rank = 0; rank < worker.experts.size(); ++rank) {
      const ExpertUse& use = worker.experts[rank];
      if (use.map_version == 0) continue;
      Seen& seen = seen_[{worker.description.id, rank}];
      seen.there = true;
      const std::uint64_t picks = total(use.picks);
      const std::uint64_t paced = total(use.paced);
      if (seen.epoch != worker.description.epoch || seen.map_version != use.map_version ||
          picks < seen.picks || paced < seen.paced) {
        seen = {worker.description.epoch, use.map_version, picks, paced, {}, true};
      } else if (picks > seen.picks) {
        seen.recent.picks = kKept * seen.recent.picks + static_cast<double>(picks - seen.picks);
        seen.recent.paced = kKept * seen.recent.paced + static_cast<double>(paced - seen.paced);
        seen.picks = picks;
        seen.paced = paced;
      }
      if (worker.description.step_group.empty()) continue;
      Sums& group = groups_[worker.description.step_group];
      group.picks += seen.recent.picks;
      group.paced += seen.recent.paced;
    }
  }
  std::erase_if(seen_, [](const auto& entry) { return !entry.second.there; });
  std::erase_if(groups_, [](const auto& entry) { return !entry.second.ratio(); });
}

std::optional<double> ExpertBalance::of(RankId rank) const {
  const auto seen = seen_.find(rank);
  return seen == seen_.end() ? std::nullopt : seen->second.recent.ratio();
}

std::optional<double> ExpertBalance::of_group(std::string_view step_group) const {
  const auto group = groups_.find(step_group);
  return group == groups_.end() ? std::nullopt : group->second.ratio();
}

}  // namespace penstock::gateway
