#include "core/experts/search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/rng.h"
#include "core/experts/migrate.h"
#include "core/experts/packer.h"

namespace penstock::experts {
namespace {

// Count vectors of layers this small are all tried.
constexpr double kExhaustiveMax = 20'000;
// Looked at in each round: experts on the worst GPUs x copies that are cheapest to take.
constexpr std::size_t kWorstGpus = 3;
constexpr std::size_t kReceiversMax = 8;
constexpr std::size_t kDonorsMax = 6;
constexpr std::size_t kKickMoves = 3;

// The number of ways to give `extra` copies to `experts`, or anything above kExhaustiveMax.
double count_vectors(std::size_t experts, std::size_t extra) {
  double ways = 1;
  for (std::size_t i = 1; i <= extra && ways <= kExhaustiveMax; ++i)
    ways *= static_cast<double>(experts - 1 + i) / static_cast<double>(i);
  return ways;
}

// The search of one node: its own experts, GPUs and copies.
class NodeSearch {
 public:
  NodeSearch(std::size_t gpus, std::size_t slots_per_gpu, std::vector<Risk> experts,
             const SearchOptions& options, std::uint64_t seed)
      : packer_(gpus, slots_per_gpu, std::move(experts)),
        options_(options),
        rng_(seed),
        exhaustive_(count_vectors(packer_.experts().size(),
                                  packer_.slots() - packer_.experts().size()) <= kExhaustiveMax) {
    counts_ = greedy();
    packer_.pack(counts_, Packer::Refine::kYes, best_);
    best_counts_ = counts_;
    if (exhaustive_) {
      odometer_.assign(counts_.size(), 1);
      odometer_.front() += static_cast<std::uint32_t>(packer_.slots() - counts_.size());
    }
  }

  const Packing& best() const { return best_; }

  bool step() {
    if (done()) return false;
    ++steps_;
    if (exhaustive_) return step_all();
    // Counts are searched with the quick packing, and compared with what it gives for these.
    if (steps_ == 1) packer_.pack(counts_, Packer::Refine::kNo, current_);
    if (!improve() && !kick()) return false;
    return true;
  }

 private:
  static bool better(const Packing& a, const Packing& b) {
    return a.peak != b.peak ? a.peak < b.peak : a.spread < b.spread;
  }

  bool done() const {
    return finished_ || steps_ >= options_.steps_max || packer_.mean() <= 0 ||
           packer_.slots() == packer_.experts().size() || best_.peak <= good_enough();
  }

  float good_enough() const { return packer_.mean() * static_cast<float>(options_.good_enough); }

  // Each copy to the expert with the most load per copy, as the baseline does.
  std::vector<std::uint32_t> greedy() const {
    const auto& experts = packer_.experts();
    std::vector<std::uint32_t> counts(experts.size(), 1);
    using Entry = std::pair<float, std::size_t>;
    std::vector<Entry> heap;
    const auto below = [](const Entry& a, const Entry& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    };
    for (std::size_t i = 0; i < experts.size(); ++i)
      heap.emplace_back(experts[i].cost(), i);
    std::ranges::make_heap(heap, below);
    for (std::size_t extra = packer_.slots() - experts.size(); extra > 0;) {
      std::ranges::pop_heap(heap, below);
      auto& [weight, expert] = heap.back();
      if (counts[expert] >= packer_.gpus()) {
        heap.pop_back();
        continue;
      }
      ++counts[expert];
      --extra;
      weight = experts[expert].cost() / static_cast<float>(counts[expert]);
      std::ranges::push_heap(heap, below);
    }
    return counts;
  }

  void keep_best(Packing& candidate, const std::vector<std::uint32_t>& counts) {
    // The quick packing is within a few percent of the refined one.
    if (candidate.peak > best_.peak * 1.03F) return;
    packer_.pack(counts, Packer::Refine::kYes, refined_);
    if (!better(refined_, best_)) return;
    best_ = refined_;
    best_counts_ = counts;
  }

  // All count vectors, in the order of an odometer; a few hundred a step.
  bool step_all() {
    for (int n = 0; n < 200; ++n) {
      if (std::ranges::all_of(odometer_, [&](std::uint32_t c) { return c <= packer_.gpus(); })) {
        packer_.pack(odometer_, Packer::Refine::kYes, trial_);
        if (better(trial_, best_)) {
          best_ = trial_;
          best_counts_ = odometer_;
        }
      }
      // Next composition: the first expert with spare copies gives one to its neighbour and takes
      // the rest back to the front.
      std::size_t i = 0;
      while (i < odometer_.size() && odometer_[i] == 1)
        ++i;
      if (i + 1 >= odometer_.size()) {
        finished_ = true;
        return false;
      }
      const std::uint32_t spare = odometer_[i] - 1;
      odometer_[i] = 1;
      ++odometer_[i + 1];
      odometer_[0] += spare - 1;
    }
    return true;
  }

  // One round: the best of the transfers looked at, if it is better than what there is.
  bool improve() {
    collect();
    std::vector<std::uint32_t>& counts = counts_;
    std::size_t best_to = 0;
    std::size_t best_from = counts.size();
    best_trial_ = current_;
    for (const ExpertIndex to : receivers_) {
      for (const ExpertIndex from : donors_) {
        if (from == to || counts[to] >= packer_.gpus() || counts[from] <= 1) continue;
        ++counts[to];
        --counts[from];
        packer_.pack(counts, Packer::Refine::kNo, trial_);
        --counts[to];
        ++counts[from];
        if (!closer(trial_, best_trial_)) continue;
        std::swap(best_trial_, trial_);
        best_to = to;
        best_from = from;
      }
    }
    if (best_from == counts.size()) return false;
    ++counts[best_to];
    --counts[best_from];
    std::swap(current_, best_trial_);
    keep_best(current_, counts);
    return true;
  }

  // Progress: the sum of high powers falls; a plateau of many equal peaks is left one by one.
  static bool closer(const Packing& a, const Packing& b) { return a.spread < b.spread; }

  // Experts on the worst GPUs, and those whose copies weigh least after losing one.
  void collect() {
    const std::size_t n = packer_.gpus();
    const std::size_t per_gpu = packer_.slots() / n;
    gpu_order_.assign(n, {});
    for (std::size_t gpu = 0; gpu < n; ++gpu) {
      float mean = 0;
      for (std::size_t s = gpu * per_gpu; s < (gpu + 1) * per_gpu; ++s)
        mean += weight(current_.slots[s], 0);
      gpu_order_[gpu] = {mean, gpu};
    }
    const std::size_t worst = std::min(kWorstGpus, n);
    std::ranges::partial_sort(gpu_order_, gpu_order_.begin() + static_cast<std::ptrdiff_t>(worst),
                              [](const auto& a, const auto& b) {
                                return a.first != b.first ? a.first > b.first : a.second < b.second;
                              });
    receivers_.clear();
    for (std::size_t i = 0; i < worst; ++i)
      for (std::size_t s = 0; s < per_gpu && receivers_.size() < kReceiversMax; ++s) {
        const ExpertIndex expert = current_.slots[gpu_order_[i].second * per_gpu + s];
        if (std::ranges::find(receivers_, expert) == receivers_.end()) receivers_.push_back(expert);
      }
    donors_.clear();
    for (std::size_t e = 0; e < counts_.size(); ++e)
      if (counts_[e] > 1) donors_.push_back(static_cast<ExpertIndex>(e));
    const std::size_t keep = std::min(kDonorsMax, donors_.size());
    std::ranges::partial_sort(donors_, donors_.begin() + static_cast<std::ptrdiff_t>(keep),
                              [&](ExpertIndex a, ExpertIndex b) {
                                const float wa = weight(a, -1);
                                const float wb = weight(b, -1);
                                return wa != wb ? wa < wb : a < b;
                              });
    donors_.resize(keep);
  }

  float weight(ExpertIndex expert, int change) const {
    return packer_.experts()[expert].cost() /
           static_cast<float>(static_cast<int>(counts_[expert]) + change);
  }

  // Starts again from the best counts with a few copies moved at random.
  bool kick() {
    if (kicks_ >= options_.kicks_max) {
      finished_ = true;
      return false;
    }
    ++kicks_;
    counts_ = best_counts_;
    for (std::size_t move = 0; move < kKickMoves; ++move) {
      donors_.clear();
      for (std::size_t e = 0; e < counts_.size(); ++e)
        if (counts_[e] > 1) donors_.push_back(static_cast<ExpertIndex>(e));
      const std::size_t to = rng_.below(counts_.size());
      const std::size_t from = donors_[rng_.below(donors_.size())];
      if (from == to || counts_[to] >= packer_.gpus()) continue;
      ++counts_[to];
      --counts_[from];
    }
    packer_.pack(counts_, Packer::Refine::kNo, current_);
    keep_best(current_, counts_);
    return true;
  }

  Packer packer_;
  SearchOptions options_;
  Rng rng_;
  bool exhaustive_;
  bool finished_ = false;
  std::uint64_t steps_ = 0;
  std::uint64_t kicks_ = 0;
  std::vector<std::uint32_t> counts_;
  std::vector<std::uint32_t> best_counts_;
  std::vector<std::uint32_t> odometer_;
  Packing current_;
  Packing best_;
  Packing trial_;
  Packing best_trial_;
  Packing refined_;
  std::vector<ExpertIndex> receivers_;
  std::vector<ExpertIndex> donors_;
  std::vector<std::pair<float, std::size_t>> gpu_order_;
};

}  // namespace

Status check_loads(const Shape& shape, const LayerLoads& loads) {
  TRY_STATUS(check(shape));
  const auto refuse = [](std::string message) {
    return Status(fail(ErrorCode::kInvalidArgument, "experts: " + std::move(message)));
  };
  const std::size_t nodes = shape.hierarchical() ? shape.nodes : 1;
  if (shape.slots_per_gpu > shape.experts / nodes)
    return refuse(
        fmt::format("{} slots per GPU for {} experts a node: copies of one expert would "
                    "share a GPU; use at most as many slots as experts",
                    shape.slots_per_gpu, shape.experts / nodes));
  if (loads.mean.size() != shape.experts)
    return refuse(fmt::format("{} loads for {} experts", loads.mean.size(), shape.experts));
  if (loads.deviations.size() != loads.windows * shape.experts)
    return refuse(fmt::format("{} deviations for {} windows of {} experts", loads.deviations.size(),
                              loads.windows, shape.experts));
  for (const double load : loads.mean)
    if (!(load >= 0 && load <= 1e30)) return refuse(fmt::format("load {}", load));
  for (const double deviation : loads.deviations)
    if (!(std::abs(deviation) <= 1e30)) return refuse(fmt::format("deviation {}", deviation));
  return {};
}

struct LayerSearch::State {
  Shape shape;
  std::vector<std::vector<ExpertIndex>> members;  // of each node, by index within it
  std::vector<NodeSearch> nodes;
  std::size_t next = 0;  // node to step
};

LayerSearch::LayerSearch(std::unique_ptr<State> state) : state_(std::move(state)) {}
LayerSearch::LayerSearch(LayerSearch&&) noexcept = default;
LayerSearch& LayerSearch::operator=(LayerSearch&&) noexcept = default;
LayerSearch::~LayerSearch() = default;

Result<LayerSearch> LayerSearch::start(const Shape& shape, const LayerLoads& loads,
                                       const SearchOptions& options) {
  TRY_STATUS(check_loads(shape, loads));
  const std::size_t nodes = shape.hierarchical() ? shape.nodes : 1;
  const std::size_t groups = shape.hierarchical() ? shape.groups : 1;
  const std::size_t group_size = shape.experts / groups;
  const std::vector<Risk> all = expert_risks(loads, options.deviation_weight);

  // Groups are spread over nodes like copies over GPUs: as many "slots" as groups a node, no
  // spares.
  std::vector<Risk> group_risks(groups);
  for (std::size_t e = 0; e < shape.experts; ++e)
    group_risks[e / group_size] += all[e];
  Packer spread(nodes, groups / nodes, std::move(group_risks));
  Packing groups_of;
  spread.pack(std::vector<std::uint32_t>(groups, 1), Packer::Refine::kYes, groups_of);

  auto state = std::make_unique<State>();
  state->shape = shape;
  for (std::size_t node = 0; node < nodes; ++node) {
    std::vector<ExpertIndex> members;
    std::vector<Risk> node_risks;
    for (std::size_t i = 0; i < groups / nodes; ++i) {
      const std::size_t group = groups_of.slots[node * (groups / nodes) + i];
      for (std::size_t e = group * group_size; e < (group + 1) * group_size; ++e) {
        members.push_back(static_cast<ExpertIndex>(e));
        node_risks.push_back(all[e]);
      }
    }
    state->nodes.emplace_back(shape.gpus / nodes, shape.slots_per_gpu, std::move(node_risks),
                              options, options.seed + node);
    state->members.push_back(std::move(members));
  }
  return LayerSearch(std::move(state));
}

bool LayerSearch::step() {
  for (; state_->next < state_->nodes.size(); ++state_->next)
    if (state_->nodes[state_->next].step()) return true;
  return false;
}

Placement LayerSearch::best() const {
  Placement placement;
  for (std::size_t node = 0; node < state_->nodes.size(); ++node)
    for (const ExpertIndex local : state_->nodes[node].best().slots)
      placement.slots.push_back(state_->members[node][local]);
  return placement;
}

Result<Placement> plan_layer(const Shape& shape, const LayerLoads& loads,
                             const SearchOptions& options) {
  TRY(LayerSearch search, LayerSearch::start(shape, loads, options));
  while (search.step()) {
  }
  return search.best();
}

double placement_cost(const Shape& shape, const Placement& placement, const LayerLoads& loads,
                      double deviation_weight) {
  const std::vector<Risk> all = expert_risks(loads, deviation_weight);
  const std::vector<std::uint32_t> counts = replica_counts(placement, shape.experts);
  std::vector<Risk> gpus(shape.gpus);
  double sum = 0;
  for (std::size_t slot = 0; slot < placement.slots.size(); ++slot) {
    const ExpertIndex expert = placement.slots[slot];
    gpus[slot / shape.slots_per_gpu] += all[expert].over(static_cast<float>(counts[expert]));
  }
  double worst = 0;
  for (const Risk& gpu : gpus) {
    worst = std::max(worst, static_cast<double>(gpu.cost()));
    sum += gpu.mean;
  }
  return sum > 0 ? worst * static_cast<double>(shape.gpus) / sum : 1;
}

}  // namespace penstock::experts
