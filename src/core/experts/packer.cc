#include "core/experts/packer.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace penstock::experts {
namespace {

constexpr ExpertIndex kNone = std::numeric_limits<ExpertIndex>::max();
// Swap partners looked at: the lightest GPUs. More finds little and costs much.
constexpr std::size_t kPartners = 12;
constexpr std::size_t kSwapsMax = 200;
// A swap has to gain more than rounding does.
constexpr float kGainMin = 1e-6F;

float power16(float x) {
  x *= x;
  x *= x;
  x *= x;
  return x * x;
}

}  // namespace

Packer::Packer(std::size_t gpus, std::size_t slots_per_gpu, std::vector<Risk> experts)
    : gpus_(gpus),
      slots_per_gpu_(slots_per_gpu),
      experts_(std::move(experts)),
      order_(experts_.size()),
      copy_(experts_.size()),
      weight_(experts_.size()),
      loads_(gpus),
      costs_(gpus),
      filled_(gpus),
      last_(gpus) {
  for (const Risk& expert : experts_) {
    mean_ += expert.mean / static_cast<float>(gpus_);
    for (std::size_t lane = 0; lane < 8; ++lane)
      has_lanes_ = has_lanes_ || expert.lanes[lane] != 0;
  }
}

bool Packer::holds(const Packing& packing, std::size_t gpu, ExpertIndex expert) const {
  for (std::size_t s = gpu * slots_per_gpu_; s < (gpu + 1) * slots_per_gpu_; ++s)
    if (packing.slots[s] == expert) return true;
  return false;
}

std::size_t Packer::choose(ExpertIndex expert, const Risk& copy) const {
  std::size_t best = gpus_;
  float least = std::numeric_limits<float>::infinity();
  for (std::size_t gpu = 0; gpu < gpus_; ++gpu) {
    // The cost after is at least the mean after: most GPUs are ruled out by that.
    if (loads_[gpu].mean + copy.mean >= least) continue;
    if (filled_[gpu] >= slots_per_gpu_ || last_[gpu] == expert) continue;
    if (has_lanes_) {
      Risk after = loads_[gpu];
      after += copy;
      if (!after.below(least)) continue;
      least = after.cost();
    } else {
      least = loads_[gpu].mean + copy.mean;
    }
    best = gpu;
  }
  return best;
}

// What always works: copies in the order of their experts, dealt round.
void Packer::deal(std::span<const std::uint32_t> counts, Packing& out) {
  std::size_t next = 0;
  for (std::size_t expert = 0; expert < counts.size(); ++expert)
    for (std::uint32_t copy = 0; copy < counts[expert]; ++copy, ++next)
      out.slots[next % gpus_ * slots_per_gpu_ + next / gpus_] = static_cast<ExpertIndex>(expert);
  std::ranges::fill(loads_, Risk{});
  for (std::size_t s = 0; s < out.slots.size(); ++s)
    loads_[s / slots_per_gpu_] += copy_[out.slots[s]];
}

void Packer::pack(std::span<const std::uint32_t> counts, Refine refine_too, Packing& out) {
  for (std::size_t i = 0; i < experts_.size(); ++i) {
    copy_[i] = experts_[i].over(static_cast<float>(counts[i]));
    weight_[i] = has_lanes_ ? copy_[i].cost() : copy_[i].mean;
    order_[i] = static_cast<ExpertIndex>(i);
  }
  std::ranges::sort(order_, [&](ExpertIndex a, ExpertIndex b) {
    return weight_[a] != weight_[b] ? weight_[a] > weight_[b] : a < b;
  });
  std::ranges::fill(loads_, Risk{});
  std::ranges::fill(filled_, 0U);
  std::ranges::fill(last_, kNone);
  out.slots.assign(slots(), kNone);
  bool stuck = false;
  for (const ExpertIndex expert : order_) {
    for (std::uint32_t copy = 0; copy < counts[expert] && !stuck; ++copy) {
      const std::size_t gpu = choose(expert, copy_[expert]);
      if (gpu == gpus_) {
        stuck = true;  // only GPUs that hold it have room
        break;
      }
      out.slots[gpu * slots_per_gpu_ + filled_[gpu]++] = expert;
      last_[gpu] = expert;
      loads_[gpu] += copy_[expert];
    }
  }
  if (stuck) deal(counts, out);
  for (std::size_t gpu = 0; gpu < gpus_; ++gpu)
    costs_[gpu] = loads_[gpu].cost();
  if (refine_too == Refine::kYes || stuck) refine(out);
  judge(out);
}

void Packer::refine(Packing& out) {
  light_.resize(gpus_);
  for (std::size_t swaps = 0; swaps < kSwapsMax; ++swaps) {
    const auto worst = static_cast<std::size_t>(std::ranges::max_element(costs_) - costs_.begin());
    if (!swap_off(worst, out)) return;
  }
}

bool Packer::swap_off(std::size_t worst, Packing& out) {
  std::iota(light_.begin(), light_.end(), std::size_t{0});
  const std::size_t partners = std::min(kPartners, gpus_);
  std::ranges::partial_sort(light_, light_.begin() + static_cast<std::ptrdiff_t>(partners),
                            [&](std::size_t a, std::size_t b) {
                              return costs_[a] != costs_[b] ? costs_[a] < costs_[b] : a < b;
                            });
  float least = costs_[worst] - kGainMin * mean_;
  std::size_t best_from = 0;
  std::size_t best_to = out.slots.size();
  for (std::size_t i = 0; i < partners; ++i) {
    const std::size_t gpu = light_[i];
    if (gpu == worst) continue;
    for (std::size_t from = worst * slots_per_gpu_; from < (worst + 1) * slots_per_gpu_; ++from) {
      const ExpertIndex going = out.slots[from];
      const Risk& out_risk = copy_[going];
      if (loads_[gpu].mean >= least || holds(out, gpu, going)) continue;
      for (std::size_t to = gpu * slots_per_gpu_; to < (gpu + 1) * slots_per_gpu_; ++to) {
        const Risk& in_risk = copy_[out.slots[to]];
        if (loads_[gpu].mean + out_risk.mean - in_risk.mean >= least ||
            loads_[worst].mean + in_risk.mean - out_risk.mean >= least)
          continue;
        Risk here = loads_[worst];
        here += in_risk;
        here -= out_risk;
        if (!here.below(least)) continue;
        Risk there = loads_[gpu];
        there += out_risk;
        there -= in_risk;
        if (!there.below(least) || holds(out, worst, out.slots[to])) continue;
        least = std::max(here.cost(), there.cost());
        best_from = from;
        best_to = to;
      }
    }
  }
  if (best_to == out.slots.size()) return false;
  const std::size_t gpu = best_to / slots_per_gpu_;
  loads_[worst] -= copy_[out.slots[best_from]];
  loads_[worst] += copy_[out.slots[best_to]];
  loads_[gpu] -= copy_[out.slots[best_to]];
  loads_[gpu] += copy_[out.slots[best_from]];
  std::swap(out.slots[best_from], out.slots[best_to]);
  costs_[worst] = loads_[worst].cost();
  costs_[gpu] = loads_[gpu].cost();
  return true;
}

void Packer::judge(Packing& out) const {
  out.peak = 0;
  out.spread = 0;
  const float scale = mean_ > 0 ? 1 / mean_ : 1;
  for (const float cost : costs_) {
    out.peak = std::max(out.peak, cost);
    out.spread += power16(cost * scale);
  }
}

}  // namespace penstock::experts
