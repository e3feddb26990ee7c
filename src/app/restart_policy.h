// When a dead child is started again: at once nearly, then ever later while it keeps dying.
//
// Invariants: delays double from kFirst to kMost; a life of kHealthy or longer starts over.
// Concurrency: a value. Pure: time comes in.
#pragma once

#include <algorithm>

#include "base/units.h"

namespace penstock {

class RestartPolicy {
 public:
  static constexpr Duration kFirst = std::chrono::milliseconds(100);
  static constexpr Duration kMost = std::chrono::seconds(10);
  static constexpr Duration kHealthy = std::chrono::seconds(30);

  // The time to wait after a child that lived this long died.
  Duration delay_after(Duration lifetime) {
    if (lifetime >= kHealthy) next_ = kFirst;
    const Duration delay = next_;
    next_ = std::min(next_ * 2, kMost);
    return delay;
  }

 private:
  Duration next_ = kFirst;
};

}  // namespace penstock
