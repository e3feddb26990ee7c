// ManualClock: a shard loop for tests and benches whose time moves only when told.
//
// Posted calls come from any thread and run inside run_one() or run_until(), on the caller's
// thread; timers run in advance(). Nothing sleeps: run_until() waits for posted calls, which is how
// a test waits for what happens on other threads. Concurrency: one thread runs it; post() from any.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "port/clock.h"

namespace penstock::control {

class ManualClock final : public Clock {
 public:
  Instant now() const override { return now_; }
  TimerId call_at(Instant when, std::function<void()> call) override {
    timers_.emplace(std::pair(when, ++last_timer_), std::move(call));
    return last_timer_;
  }
  void cancel(TimerId timer) override {
    std::erase_if(timers_, [&](const auto& entry) { return entry.first.second == timer; });
  }
  void post(std::function<void()> call) override {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(call));
    if (posted_.size() == 1) news_.notify_one();
  }

  // Runs what was posted; waits for it when there is nothing.
  void run_some() {
    std::vector<std::function<void()>> calls;
    {
      std::unique_lock lock(mutex_);
      news_.wait(lock, [&] { return !posted_.empty(); });
      calls.swap(posted_);
    }
    for (auto& call : calls)
      call();
  }
  // Runs posted calls until `done()`.
  template <typename Done>
  void run_until(Done done) {
    while (!done())
      run_some();
  }
  // Moves time on, running timers that come due in their order.
  void advance(Duration by) {
    const Instant end = now_ + by;
    while (!timers_.empty() && timers_.begin()->first.first <= end) {
      now_ = std::max(now_, timers_.begin()->first.first);
      const auto call = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      call();
    }
    now_ = end;
  }
  // Moves time without running timers in between: a shard that was stopped for a while.
  void stall(Duration by) {
    now_ += by;
    advance(Duration::zero());
  }

 private:
  Instant now_{std::chrono::seconds(1000)};
  TimerId last_timer_ = 0;
  std::map<std::pair<Instant, TimerId>, std::function<void()>> timers_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<std::function<void()>> posted_;
};

}  // namespace penstock::control
