// The joint search: how many copies each expert of a layer gets, and which GPU holds which.
//
// The public baseline first decides copies and then packs them. Here a candidate is a vector of
// copy counts, judged by the placement it leads to: copies heaviest first onto the GPU where the
// cost after is least, never two of one expert on one GPU, then swaps off the worst GPU. Counts are
// searched from the baseline's: a copy is taken where it costs least and given to an expert on the
// worst GPUs (also a light one: its halves are better company for heavy copies), with random kicks
// when nothing helps; tiny layers are searched exhaustively. Hierarchical shapes are searched node
// by node after groups were spread over nodes.
//
// Cost of a GPU = mean load + z * root mean square of the given deviations, where those of the
// experts on it add up window by window. So two experts that rise together (one topic) are kept
// apart, which a variance per expert alone would not see.
//
// The search is stepwise: each step() is short (tens of microseconds to about a millisecond), the
// best placement so far is always there, and whoever owns the clock decides when it is enough.
//
// Invariants: best() is complete and distinct; equal inputs and equal step counts give equal
// results; best().cost never rises. Units: loads in tokens per window, or anything that adds up.
// Errors: kInvalidArgument for shapes that check() refuses, wrong sizes, negative or non-finite
// loads, or more slots per GPU than a node has experts (copies could not be distinct).
// Concurrency: one thread. Source: design.md section 7; the risk of mean and deviation as in
// FlashLB (vllm-ascend), the rest is ours.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/experts/placement.h"

namespace penstock::experts {

// What is expected of one layer in the next window.
struct LayerLoads {
  std::vector<double> mean;        // per expert
  std::vector<double> deviations;  // [windows, experts], changes a window may bring; may be empty
  std::size_t windows = 0;         // at most kWindowsMax; the first ones are used
};
inline constexpr std::size_t kWindowsMax = 8;

struct SearchOptions {
  double deviation_weight = 1;     // z
  std::uint64_t steps_max = 2000;  // count changes tried in rounds, all nodes together
  std::uint64_t kicks_max = 60;    // random restarts from the best
  // A node whose worst GPU is within this of its mean is not searched further.
  double good_enough = 1.003;
  std::uint64_t seed = 1;
};

class LayerSearch {
 public:
  static Result<LayerSearch> start(const Shape& shape, const LayerLoads& loads,
                                   const SearchOptions& options);
  LayerSearch(LayerSearch&&) noexcept;
  LayerSearch& operator=(LayerSearch&&) noexcept;
  ~LayerSearch();

  // Searches a little more; false when nothing is left to try.
  bool step();
  Placement best() const;

 private:
  struct State;
  explicit LayerSearch(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// What LayerSearch::start() would refuse.
Status check_loads(const Shape& shape, const LayerLoads& loads);

// Runs a search to its end.
Result<Placement> plan_layer(const Shape& shape, const LayerLoads& loads,
                             const SearchOptions& options);

// The cost of the worst GPU, as the search sees it, over the mean load of a GPU.
double placement_cost(const Shape& shape, const Placement& placement, const LayerLoads& loads,
                      double deviation_weight);

}  // namespace penstock::experts
