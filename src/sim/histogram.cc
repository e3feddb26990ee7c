#include "sim/histogram.h"

#include <algorithm>
#include <cmath>

namespace penstock::sim {
namespace {

constexpr double kLeast = 1e-6;
const double kStep = std::log(1.01);

}  // namespace

// Bucket 0 holds everything up to kLeast, bucket b values up to kLeast * 1.01^b.
std::size_t Histogram::bucket(double seconds) {
  if (!(seconds > kLeast)) return 0;
  const double b = std::ceil(std::log(seconds / kLeast) / kStep);
  return std::min(static_cast<std::size_t>(b), kBuckets - 1);
}

void Histogram::add(double seconds, std::uint64_t times) {
  counts_[bucket(seconds)] += times;
  count_ += times;
  sum_ += seconds * static_cast<double>(times);
  max_ = std::max(max_, seconds);
}

double Histogram::quantile(double q) const {
  if (count_ == 0) return 0;
  const double wanted = std::clamp(q, 0.0, 1.0) * static_cast<double>(count_);
  std::uint64_t seen = 0;
  for (std::size_t b = 0; b < kBuckets; ++b) {
    seen += counts_[b];
    if (seen > 0 && static_cast<double>(seen) >= wanted)
      return std::min(max_, kLeast * std::exp(kStep * static_cast<double>(b)));
  }
  return max_;
}

double Histogram::share_within(double seconds) const {
  if (count_ == 0) return 1;
  std::uint64_t within = 0;
  for (std::size_t b = 0; b <= bucket(seconds); ++b)
    within += counts_[b];
  return static_cast<double>(within) / static_cast<double>(count_);
}

}  // namespace penstock::sim
