// What a rank still has to do when its report arrives late.
//
// A report says what the rank had when it was made. On its way the rank went on working, and the
// gateway gave it more: what was given then is added at its time, and between those times the rank
// works off what it has. Without this a rank looks as busy as it was, and with half a second of lag
// ranks that hold two steps of work stand idle while prompts wait for them.
//
// Invariants: never below 0; with no time on the way it is the report plus what was given since.
// Units: seconds of predicted work; `work_per_second` is the part of a busy rank's time that
// becomes predicted work. Cost: O(given). Concurrency: values. Source: docs/design/0010.
#pragma once

#include <algorithm>
#include <span>

#include "base/units.h"
#include "core/routing/cost_model.h"

namespace penstock::routing {

struct GivenWork {
  Instant at{};
  double seconds = 0;
};

// `given`: since the report was made, in order.
inline double left_on_arrival(double reported, Instant made, std::span<const GivenWork> given,
                              Instant arrives, double work_per_second) {
  double left = reported;
  Instant then = made;
  const auto work_until = [&](Instant now) {
    left = std::max(0.0, left - work_per_second * to_seconds(now - then));
    then = now;
  };
  for (const GivenWork& more : given) {
    work_until(more.at);
    left += more.seconds;
  }
  work_until(arrives);
  return left;
}

}  // namespace penstock::routing
