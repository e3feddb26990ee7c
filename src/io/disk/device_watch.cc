#include "io/disk/device_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace penstock::disk {
namespace {

using std::chrono::seconds;

constexpr Duration kStepMax = seconds(1);
constexpr Duration kLate = seconds(1);
constexpr Duration kWindow = seconds(10);
constexpr int kSlowWindows = 3;
constexpr int kCalmWindows = 30;

}  // namespace

SegmentIo::Done DeviceWatch::watched(SegmentIo::Done done) {
  const std::uint64_t number = next_++;
  started_.emplace(number, clock_);
  return [this, number, done = std::move(done)](int error, std::size_t bytes) mutable {
    const auto started = started_.find(number);
    ++ended_;
    late_ += clock_ - started->second > kLate ? 1U : 0U;
    started_.erase(started);
    done(error, bytes);
  };
}

void DeviceWatch::advance(Instant now) {
  if (last_) clock_ += std::clamp(Duration(now - *last_), Duration(), kStepMax);
  last_ = now;
  if (clock_ < window_end_) return;
  window_end_ = clock_ + kWindow;
  const bool slow = late_ * 100 > ended_;
  slow_windows_ = slow ? slow_windows_ + 1 : 0;
  calm_windows_ = slow ? 0 : calm_windows_ + 1;
  if (calm_windows_ >= kCalmWindows) told_ = false;
  ended_ = late_ = 0;
}

Duration DeviceWatch::oldest() const {
  return started_.empty() ? Duration() : clock_ - started_.begin()->second;
}

bool DeviceWatch::take_slow() {
  if (told_ || slow_windows_ < kSlowWindows) return false;
  return told_ = true;
}

}  // namespace penstock::disk
