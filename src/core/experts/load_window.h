// A sliding window of expert loads, and what it says about the next window.
//
// Each push() is one window: the tokens that every expert of one layer got. forecast() gives the
// expected load (newer windows weigh more: a half-life in windows) and how loads changed from each
// remembered window to the next, at the same total, since a busier minute is not imbalance. What
// the next window will do to a plan is one more such change. Changes are kept window by window, so
// that experts which rise together are seen to do so.
//
// Units: tokens per window. Invariants: at most kWindowsMax + 1 windows are kept; memory never
// grows. Errors: kInvalidArgument for a wrong number of loads, negative or non-finite ones.
// Concurrency: one thread.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "core/experts/search.h"

namespace penstock::experts {

class LoadWindow {
 public:
  explicit LoadWindow(std::size_t experts, double half_life_windows = 0.5)
      : experts_(experts), half_life_(half_life_windows) {}

  Status push(std::span<const double> loads);
  // Of all zero loads while nothing was pushed.
  LayerLoads forecast() const;
  std::size_t windows() const { return recent_.size(); }

 private:
  std::size_t experts_;
  double half_life_;
  std::deque<std::vector<double>> recent_;  // newest first
};

}  // namespace penstock::experts
