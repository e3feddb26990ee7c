#include "core/kvcache/reuse_distance.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/check.h"

namespace penstock::kvcache {

ReuseDistance::ReuseDistance(std::size_t blocks_max, std::uint64_t half_life)
    : blocks_max_(blocks_max),
      half_life_(half_life),
      threshold_(std::numeric_limits<std::uint64_t>::max()),
      tree_(4 * blocks_max + 1),
      until_halved_(half_life) {
  ENSURE(blocks_max > 0 && blocks_max < (std::size_t{1} << 28) && half_life > 0);
}

double ReuseDistance::rate() const {
  return (static_cast<double>(threshold_) + 1) / 0x1p64;
}

// Distances up to 16 have a step each, then 16 steps to the octave.
double ReuseDistance::step_of(double distance) {
  constexpr double kLinear = kStepsPerOctave;
  const double step = distance < kLinear ? distance : kLinear * (std::log2(distance / kLinear) + 1);
  return std::min(step, static_cast<double>(kSteps - 1));
}

void ReuseDistance::reference(const BlockKey& key) {
  ++references_;
  if (--until_halved_ == 0) {
    until_halved_ = half_life_;
    for (double& count : reuses_)
      count /= 2;
    sampled_ /= 2;
    references_ /= 2;
  }
  const std::uint64_t hash = std::hash<Hash128>{}(key);
  if (hash > threshold_) return;
  ++sampled_;
  if (next_slot_ == tree_.size()) renumber();
  const auto [entry, first_use] = last_use_.try_emplace(hash, next_slot_);
  if (first_use) {
    hashes_.insert(hash);
  } else {
    const double distance = marked_after(entry->second) / rate();
    ++reuses_[static_cast<std::size_t>(step_of(distance))];
    mark(entry->second, -1);
    entry->second = next_slot_;
  }
  mark(next_slot_++, 1);
  if (last_use_.size() > blocks_max_) lower_threshold();
}

// Forgets the block with the largest hash and samples only below it from now on.
void ReuseDistance::lower_threshold() {
  const double before = rate();
  const std::uint64_t largest = *hashes_.rbegin();
  mark(last_use_.at(largest), -1);
  last_use_.erase(largest);
  hashes_.erase(largest);
  threshold_ = largest - 1;
  const double scale = rate() / before;
  for (double& count : reuses_)
    count *= scale;
  sampled_ *= scale;
}

// All slots are used: the last uses move together at the front, in their order.
void ReuseDistance::renumber() {
  std::vector<std::uint64_t> in_order(tree_.size(), 0);
  std::vector<bool> taken(tree_.size(), false);
  for (const auto& [hash, slot] : last_use_) {
    in_order[slot] = hash;
    taken[slot] = true;
  }
  std::ranges::fill(tree_, 0);
  next_slot_ = 1;
  for (std::size_t slot = 0; slot < in_order.size(); ++slot) {
    if (!taken[slot]) continue;
    last_use_[in_order[slot]] = next_slot_;
    mark(next_slot_++, 1);
  }
}

void ReuseDistance::mark(std::size_t slot, std::int32_t change) {
  for (; slot < tree_.size(); slot += slot & -slot)
    tree_[slot] += change;
}

std::uint32_t ReuseDistance::marked_after(std::size_t slot) const {
  std::int32_t up_to = 0;
  for (; slot > 0; slot -= slot & -slot)
    up_to += tree_[slot];
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(last_use_.size()) - up_to);
}

double ReuseDistance::hit_rate(std::uint64_t blocks) const {
  if (references_ == 0 || blocks == 0) return 0;
  // A sample without the hottest blocks (or with too many of them) lacks references of distance 0.
  const double expected = references_ * rate();
  double hits = expected - sampled_;
  const double step = step_of(static_cast<double>(blocks));
  const auto whole = static_cast<std::size_t>(step);
  for (std::size_t i = 0; i < whole; ++i)
    hits += reuses_[i];
  hits += reuses_[whole] * (step - static_cast<double>(whole));
  return std::clamp(hits / expected, 0.0, 1.0);
}

double ReuseDistance::hit_rate_max() const {
  return hit_rate(std::numeric_limits<std::uint64_t>::max());
}

}  // namespace penstock::kvcache
