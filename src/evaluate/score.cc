#include "evaluate/score.h"

#include <algorithm>
#include <cmath>

namespace penstock::evaluate {

double Score::accuracy() const {
  return items == 0 ? 0 : static_cast<double>(right) / static_cast<double>(items);
}

Interval wilson_interval(std::uint64_t right, std::uint64_t items) {
  if (items == 0) return {};
  constexpr double z = 1.959963984540054;  // the normal quantile of 0.975
  const auto n = static_cast<double>(items);
  const double share = static_cast<double>(right) / n;
  const double centre = share + z * z / (2 * n);
  const double spread = z * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n));
  const double scale = 1 + z * z / n;
  return {std::max(0.0, (centre - spread) / scale), std::min(1.0, (centre + spread) / scale)};
}

}  // namespace penstock::evaluate
