#include "core/experts/load_window.h"

#include <cmath>
#include <numeric>

#include <fmt/format.h>

namespace penstock::experts {

Status LoadWindow::push(std::span<const double> loads) {
  if (loads.size() != experts_)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("experts: {} loads for {} experts", loads.size(), experts_));
  for (const double load : loads)
    if (!(load >= 0 && load <= 1e30))
      return fail(ErrorCode::kInvalidArgument, fmt::format("experts: load {}", load));
  recent_.emplace_front(loads.begin(), loads.end());
  if (recent_.size() > kWindowsMax + 1) recent_.pop_back();
  return {};
}

LayerLoads LoadWindow::forecast() const {
  LayerLoads loads{.mean = std::vector<double>(experts_), .deviations = {}, .windows = 0};
  std::vector<double> totals;
  for (const auto& window : recent_)
    totals.push_back(std::accumulate(window.begin(), window.end(), 0.0));
  double weights = 0;
  double total = 0;
  for (std::size_t w = 0; w < recent_.size(); ++w) {
    if (totals[w] <= 0) continue;  // nothing ran: it says nothing
    const double weight = std::exp2(-static_cast<double>(w) / half_life_);
    for (std::size_t e = 0; e < experts_; ++e)
      loads.mean[e] += weight * recent_[w][e] / totals[w];
    weights += weight;
    total += weight * totals[w];
  }
  if (weights <= 0) return loads;
  total /= weights;
  for (double& mean : loads.mean)
    mean *= total / weights;
  for (std::size_t w = 0; w + 1 < recent_.size(); ++w) {
    if (totals[w] <= 0 || totals[w + 1] <= 0) continue;
    ++loads.windows;
    for (std::size_t e = 0; e < experts_; ++e)
      loads.deviations.push_back((recent_[w][e] / totals[w] - recent_[w + 1][e] / totals[w + 1]) *
                                 total);
  }
  return loads;
}

}  // namespace penstock::experts
