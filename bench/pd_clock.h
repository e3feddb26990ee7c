// ShardClock: a gateway shard's loop for benches, in real time, on the thread that runs it.
//
// Production runs shards on Asio's loop (io/http/asio_clock.h); a bench is one shard that also has
// a main program, so this one runs until a condition holds.
// Invariants: as port/clock.h. Concurrency: one thread runs it; post() from any.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>

#include "io/control/poll_loop.h"
#include "port/clock.h"

namespace penstock::bench {

class ShardClock final : public Clock {
 public:
  using Steady = std::chrono::steady_clock;

  Instant now() const override {
    return Instant(std::chrono::duration_cast<Duration>(Steady::now().time_since_epoch()));
  }
  TimerId call_at(Instant when, std::function<void()> call) override {
    const TimerId id = ++last_timer_;
    timers_.emplace(std::pair(when, id), std::move(call));
    times_.emplace(id, when);
    return id;
  }
  void cancel(TimerId timer) override {
    const auto found = times_.find(timer);
    if (found == times_.end()) return;
    timers_.erase({found->second, timer});
    times_.erase(found);
  }
  void post(std::function<void()> call) override { loop_.post(std::move(call)); }
  Poller& poller() { return loop_; }

  // Runs calls until `done()`; false when `limit` passes first.
  template <typename Done>
  bool run_until(Done done, Duration limit) {
    const Instant end = now() + limit;
    while (!done()) {
      if (now() >= end) return false;
      run_once(end);
    }
    return true;
  }

 private:
  void run_once(Instant end) {
    const Instant next = timers_.empty() ? end : std::min(end, timers_.begin()->first.first);
    loop_.turn(std::max(next - now(), Duration::zero()));
    while (!timers_.empty() && timers_.begin()->first.first <= now()) {
      const auto call = std::move(timers_.begin()->second);
      times_.erase(timers_.begin()->first.second);
      timers_.erase(timers_.begin());
      call();
    }
  }

  TimerId last_timer_ = 0;
  std::map<std::pair<Instant, TimerId>, std::function<void()>> timers_;
  std::unordered_map<TimerId, Instant> times_;
  control::PollLoop loop_;
};

}  // namespace penstock::bench
