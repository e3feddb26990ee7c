// StoreBreaker: keeps a slow or failing store from costing every request its deadline.
//
// Closed: operations go ahead. After `failures_max` failures in a row it opens: nothing is asked
// for `pause`, which doubles each time up to `pause_max` (short: a probe is one small look-up, and
// a store that is back is to be used). Then one probe is let through (half open): its success
// closes the breaker, its failure opens it again. A store that is off (not connected yet) says so
// at once: there is nothing to spare, so it is probed every `pause_min`, and that is no failure.
//
// Concurrency: one thread. Source: docs/design/0013-cluster-tier.md.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/units.h"

namespace penstock::service {

struct StoreBreakerOptions {
  int failures_max = 4;
  Duration pause_min = std::chrono::milliseconds(500);
  Duration pause_max = std::chrono::seconds(2);
};

class StoreBreaker {
 public:
  explicit StoreBreaker(const StoreBreakerOptions& options)
      : options_(options), pause_(options.pause_min) {}

  bool closed() const { return state_ == State::kClosed; }
  std::uint64_t openings() const { return openings_; }
  void succeeded() {
    failures_ = 0;
    pause_ = options_.pause_min;
    state_ = State::kClosed;
    is_off_ = false;
  }
  // Those of operations that began before it opened change nothing.
  void failed(Instant now) {
    if (state_ == State::kOpen) return;
    if (state_ == State::kClosed && ++failures_ < options_.failures_max) return;
    state_ = State::kOpen;
    is_off_ = false;
    ++openings_;
    retry_at_ = now + pause_;
    pause_ = std::min(2 * pause_, options_.pause_max);
  }
  void off(Instant now) {
    if (state_ == State::kOpen) return;
    state_ = State::kOpen;
    is_off_ = true;
    retry_at_ = now + options_.pause_min;
  }
  // Opened by off() and not by failures.
  bool is_off() const { return is_off_; }
  // True when the probe is to be sent now; then one of the above follows.
  bool take_probe(Instant now) {
    if (state_ != State::kOpen || now < retry_at_) return false;
    state_ = State::kHalfOpen;
    return true;
  }
  Instant retry_at() const { return retry_at_; }

 private:
  enum class State : std::uint8_t { kClosed, kOpen, kHalfOpen };
  StoreBreakerOptions options_;
  State state_ = State::kClosed;
  bool is_off_ = false;
  int failures_ = 0;
  std::uint64_t openings_ = 0;
  Duration pause_;
  Instant retry_at_{};
};

}  // namespace penstock::service
