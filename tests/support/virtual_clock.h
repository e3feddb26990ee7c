// VirtualClock: a Clock whose time moves only when the test says so.
//
// run() does what is due now; advance() moves time step by step through everything that becomes
// due. Equal times run in the order of their calls, so a test is deterministic. One thread.
#pragma once

#include <deque>
#include <map>
#include <utility>

#include "port/clock.h"

namespace penstock::testing {

class VirtualClock final : public Clock {
 public:
  Instant now() const override { return now_; }

  TimerId call_at(Instant when, std::function<void()> call) override {
    const TimerId id = ++last_id_;
    timers_.emplace(std::pair(std::max(when, now_), id), std::move(call));
    when_.emplace(id, std::max(when, now_));
    return id;
  }
  void cancel(TimerId timer) override {
    const auto it = when_.find(timer);
    if (it == when_.end()) return;
    timers_.erase({it->second, timer});
    when_.erase(it);
  }
  void post(std::function<void()> call) override { posted_.push_back(std::move(call)); }

  // Runs everything due at the present time.
  void run() {
    while (true) {
      if (!posted_.empty()) {
        auto call = std::move(posted_.front());
        posted_.pop_front();
        call();
        continue;
      }
      if (timers_.empty() || timers_.begin()->first.first > now_) return;
      auto node = timers_.extract(timers_.begin());
      when_.erase(node.key().second);
      node.mapped()();
    }
  }

  void advance(Duration duration) {
    const Instant end = now_ + duration;
    run();
    while (!timers_.empty() && timers_.begin()->first.first <= end) {
      now_ = timers_.begin()->first.first;
      run();
    }
    now_ = end;
  }

  std::size_t timers() const { return timers_.size(); }

 private:
  Instant now_{Duration(1)};
  TimerId last_id_ = 0;
  std::map<std::pair<Instant, TimerId>, std::function<void()>> timers_;
  std::map<TimerId, Instant> when_;
  std::deque<std::function<void()>> posted_;
};

}  // namespace penstock::testing
