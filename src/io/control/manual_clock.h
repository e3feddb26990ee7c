// ManualClock: a shard loop for tests and benches whose time moves only when told.
//
// Posted calls come from any thread and run inside run_some() or run_until(), on the caller's
// thread, as do calls of watched descriptors; timers run in advance(). Nothing sleeps: run_until()
// waits for such calls, which is how a test waits for what happens on other threads.
// Concurrency: one thread runs it; post() from any.
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "io/control/poll_loop.h"
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
  void post(std::function<void()> call) override { loop_.post(std::move(call)); }
  Poller& poller() { return loop_; }

  // Runs what there is to run; waits for it when there is nothing.
  void run_some() { loop_.turn(Duration(-1)); }
  // Runs calls until `done()`.
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
  PollLoop loop_;
};

}  // namespace penstock::control
