#include "core/experts/migrate.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace penstock::experts {

// What a change would do: the worst cost among the GPUs it touches, and its price.
struct Migration::Change {
  double gain = 0;  // off the worst cost, per move
  float limit = 0;  // cost of the worst GPU now
  std::size_t slot = 0;
  std::size_t other = 0;  // swap: the other slot
  ExpertIndex arriving = 0;
  std::size_t moves = 0;  // 0: nothing found

  void offer(float after, std::size_t price, std::size_t at, std::size_t with, ExpertIndex expert) {
    const double gained = (static_cast<double>(limit) - after) / static_cast<double>(price);
    if (gained <= gain) return;
    *this = {gained, limit, at, with, expert, price};
  }
};

std::vector<Risk> expert_risks(const LayerLoads& loads, double deviation_weight) {
  const std::size_t windows = std::min(loads.windows, kWindowsMax);
  std::vector<Risk> risks(loads.mean.size());
  const double scale = windows > 0 ? deviation_weight / std::sqrt(static_cast<double>(windows)) : 0;
  for (std::size_t e = 0; e < risks.size(); ++e) {
    risks[e].mean = static_cast<float>(loads.mean[e]);
    for (std::size_t w = 0; w < windows; ++w)
      risks[e].lanes[w] = static_cast<float>(scale * loads.deviations[w * loads.mean.size() + e]);
  }
  return risks;
}

Migration::Migration(const Shape& shape, Placement start, const LayerLoads& loads,
                     double deviation_weight, std::size_t moves_max)
    : shape_(shape),
      node_gpus_(shape.hierarchical() ? shape.gpus / shape.nodes : shape.gpus),
      placement_(std::move(start)),
      experts_(expert_risks(loads, deviation_weight)),
      moves_max_(moves_max) {
  reload();
}

void Migration::reload() {
  counts_ = replica_counts(placement_, shape_.experts);
  holders_.assign(shape_.experts, {});
  loads_.assign(shape_.gpus, Risk{});
  for (std::size_t slot = 0; slot < placement_.slots.size(); ++slot) {
    const ExpertIndex expert = placement_.slots[slot];
    holders_[expert].push_back(gpu_of(slot));
    loads_[gpu_of(slot)] += experts_[expert].over(static_cast<float>(counts_[expert]));
  }
}

bool Migration::holds(std::size_t gpu, ExpertIndex expert) const {
  return std::ranges::find(holders_[expert], gpu) != holders_[expert].end();
}

void Migration::consider_swaps(std::size_t worst, Change& best) const {
  const std::size_t n = shape_.slots_per_gpu;
  const std::size_t first_gpu = node_of(worst) * node_gpus_;
  for (std::size_t from = worst * n; from < (worst + 1) * n; ++from) {
    const ExpertIndex a = placement_.slots[from];
    const Risk going = experts_[a].over(static_cast<float>(counts_[a]));
    for (std::size_t to = first_gpu * n; to < (first_gpu + node_gpus_) * n; ++to) {
      const std::size_t gpu = gpu_of(to);
      const ExpertIndex b = placement_.slots[to];
      if (gpu == worst || experts_[b].mean / static_cast<float>(counts_[b]) >= going.mean ||
          holds(gpu, a) || holds(worst, b))
        continue;
      const Risk coming = experts_[b].over(static_cast<float>(counts_[b]));
      Risk here = loads_[worst];
      here += coming;
      here -= going;
      Risk there = loads_[gpu];
      there += going;
      there -= coming;
      best.offer(std::max(here.cost(), there.cost()), 2, from, to, 0);
    }
  }
}

// The slot's expert loses this copy, `arriving` gets one more: touches every GPU that holds either.
void Migration::consider_copies(std::size_t slot, ExpertIndex arriving, Change& best) const {
  const std::size_t gpu = gpu_of(slot);
  const ExpertIndex leaving = placement_.slots[slot];
  if (leaving == arriving || counts_[leaving] < 2 || holds(gpu, arriving)) return;
  const Risk old_leaving = experts_[leaving].over(static_cast<float>(counts_[leaving]));
  const Risk new_leaving = experts_[leaving].over(static_cast<float>(counts_[leaving] - 1));
  const Risk old_arriving = experts_[arriving].over(static_cast<float>(counts_[arriving]));
  const Risk new_arriving = experts_[arriving].over(static_cast<float>(counts_[arriving] + 1));
  const float limit = best.limit;
  Risk here = loads_[gpu];
  here -= old_leaving;
  here += new_arriving;
  float after = here.cost();
  if (after >= limit) return;
  for (const std::size_t other : holders_[leaving]) {
    if (other == gpu) continue;
    Risk there = loads_[other];
    there -= old_leaving;
    there += new_leaving;
    if (holds(other, arriving)) {
      there -= old_arriving;
      there += new_arriving;
    }
    after = std::max(after, there.cost());
    if (after >= limit) return;
  }
  for (const std::size_t other : holders_[arriving]) {
    if (holds(other, leaving)) continue;  // seen above
    Risk there = loads_[other];
    there -= old_arriving;
    there += new_arriving;
    after = std::max(after, there.cost());
    if (after >= limit) return;
  }
  best.offer(after, 1, slot, slot, arriving);
}

void Migration::make(const Change& change) {
  if (change.slot != change.other)
    std::swap(placement_.slots[change.slot], placement_.slots[change.other]);
  else
    placement_.slots[change.slot] = change.arriving;
  moves_ += change.moves;
  reload();
}

bool Migration::step() {
  if (moves_ >= moves_max_) return false;
  std::size_t worst = 0;
  float most = -1;
  for (std::size_t gpu = 0; gpu < shape_.gpus; ++gpu)
    if (const float cost = loads_[gpu].cost(); cost > most) {
      most = cost;
      worst = gpu;
    }
  Change best;
  best.limit = most * (1 - 1e-6F);  // more than rounding
  if (moves_ + 2 <= moves_max_) consider_swaps(worst, best);
  const std::size_t n = shape_.slots_per_gpu;
  const std::size_t first_gpu = node_of(worst) * node_gpus_;
  for (std::size_t mine = worst * n; mine < (worst + 1) * n; ++mine) {
    // A further copy of an expert of the worst GPU, over a spare copy elsewhere.
    for (std::size_t slot = first_gpu * n; slot < (first_gpu + node_gpus_) * n; ++slot)
      if (gpu_of(slot) != worst) consider_copies(slot, placement_.slots[mine], best);
    // A spare copy on the worst GPU, overwritten by an expert of the same node.
    if (counts_[placement_.slots[mine]] > 1)
      for (std::size_t slot = first_gpu * n; slot < (first_gpu + node_gpus_) * n; ++slot)
        consider_copies(mine, placement_.slots[slot], best);
  }
  if (best.moves == 0) return false;
  make(best);
  return true;
}

}  // namespace penstock::experts
