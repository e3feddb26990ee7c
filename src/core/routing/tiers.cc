#include "core/routing/tiers.h"

#include <algorithm>
#include <cmath>

namespace penstock::routing {

std::size_t Tiers::tier_of(std::int64_t context_tokens) const {
  std::size_t tier = 0;
  while (tier < options_.bounds.size() && context_tokens >= options_.bounds[tier])
    ++tier;
  return tier;
}

void Tiers::demand(std::size_t tier, double quota_seconds) {
  round_demand_[tier] += std::max(quota_seconds, 0.0);
  round_count_[tier] += 1;
}

double Tiers::quota_per_request(std::size_t tier) const {
  return arrivals_[tier] > 0 ? demand_[tier] / arrivals_[tier] : 0;
}

std::size_t Tiers::count_engines(std::size_t tier) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(masks_, [&](std::uint8_t mask) { return (mask >> tier & 1U) != 0; }));
}

// Boundaries of the tiers on a line of `engines`; equal shares before anything was measured.
Tiers::Line Tiers::wanted(std::size_t engines) const {
  double total = 0;
  for (const double d : demand_)
    total += d;
  Line line{};
  for (std::size_t tier = 0; tier < kTiers; ++tier)
    line[tier + 1] = line[tier] + static_cast<double>(engines) *
                                      (total > 0 ? demand_[tier] / total : 1.0 / kTiers);
  line[kTiers] = static_cast<double>(engines);
  return line;
}

bool Tiers::lay(const Line& line, std::size_t engines) {
  const std::vector<std::uint8_t> before = masks_;
  line_ = line;
  masks_.assign(engines, 0);
  for (std::size_t tier = 0; tier < kTiers; ++tier) {
    for (std::size_t engine = 0; engine < engines; ++engine) {
      const double from = std::max(line[tier], static_cast<double>(engine));
      const double to = std::min(line[tier + 1], static_cast<double>(engine + 1));
      if (to - from >= options_.cover_min)
        masks_[engine] = static_cast<std::uint8_t>(masks_[engine] | 1U << tier);
    }
  }
  // An engine that several slivers share takes the widest; a tier without an engine takes the one
  // in whose place it begins.
  for (std::size_t engine = 0; engine < engines; ++engine) {
    if (masks_[engine] != 0) continue;
    const double middle = static_cast<double>(engine) + 0.5;
    std::size_t tier = 0;
    while (tier + 1 < kTiers && line[tier + 1] <= middle)
      ++tier;
    masks_[engine] = static_cast<std::uint8_t>(1U << tier);
  }
  for (std::size_t tier = 0; tier < kTiers && engines > 0; ++tier) {
    if (count_engines(tier) > 0) continue;
    const auto engine = std::min(static_cast<std::size_t>(line[tier]), engines - 1);
    masks_[engine] = static_cast<std::uint8_t>(masks_[engine] | 1U << tier);
  }
  for (std::size_t tier = 0; tier < kTiers; ++tier)
    engines_of_[tier] = count_engines(tier);
  return masks_ != before;
}

bool Tiers::advance(Instant now, std::size_t engines) {
  if (!started_) {
    started_ = true;
    round_start_ = now;
    return lay(wanted(engines), engines);
  }
  if (now - round_start_ >= options_.round) {
    const double seconds = std::chrono::duration<double>(now - round_start_).count();
    const double weight = measured_ ? options_.smoothing : 1;
    for (std::size_t tier = 0; tier < kTiers; ++tier) {
      demand_[tier] += weight * (round_demand_[tier] / seconds - demand_[tier]);
      arrivals_[tier] += weight * (round_count_[tier] / seconds - arrivals_[tier]);
    }
    measured_ = true;
    round_demand_ = {};
    round_count_ = {};
    round_start_ = now;
    const Line line = wanted(engines);
    double shift = 0;
    for (std::size_t tier = 0; tier < kTiers; ++tier)
      shift = std::max(shift, std::abs(line[tier] - line_[tier]));
    return (shift > options_.hysteresis || masks_.size() != engines) && lay(line, engines);
  }
  return masks_.size() != engines && lay(wanted(engines), engines);
}

}  // namespace penstock::routing
