// EventQueue: a Clock in virtual time, which jumps from event to event.
//
// A binary heap of (time, order of call). run_until() runs what is due in that order and moves the
// time; nothing waits. Cancelled events are skipped when they come up. The digest folds in the
// time and kind of everything that the owner marks, so two runs can be compared.
//
// Invariants: time never goes back; equal times run in the order of their calls; callbacks never
// run inside call_at() or post(). Concurrency: one thread, post() included.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_set>
#include <vector>

#include "port/clock.h"

namespace penstock::sim {

class EventQueue final : public Clock {
 public:
  Instant now() const override { return now_; }
  TimerId call_at(Instant when, std::function<void()> call) override;
  void cancel(TimerId timer) override;
  void post(std::function<void()> call) override { call_at(now_, std::move(call)); }

  // Runs everything due up to `end`, which becomes the present time. False when `events_max` were
  // not enough: something repeats for ever.
  bool run_until(Instant end, std::uint64_t events_max);
  // Runs until nothing is left.
  bool run(std::uint64_t events_max);
  // The run under way ends after the present event, as if events_max were reached.
  void stop() { stopped_ = true; }
  bool empty() const { return heap_.size() == cancelled_.size(); }
  std::uint64_t events() const { return events_; }

 private:
  struct Event {
    Instant when;
    TimerId id = 0;
    std::function<void()> call;
  };
  // For the heap algorithms, which keep the greatest in front: later is less.
  static bool later(const Event& a, const Event& b) {
    return a.when != b.when ? a.when > b.when : a.id > b.id;
  }

  std::vector<Event> heap_;
  std::unordered_set<TimerId> cancelled_;  // still in the heap
  std::unordered_set<TimerId> pending_;
  Instant now_{};
  bool stopped_ = false;
  TimerId last_id_ = 0;
  std::uint64_t events_ = 0;
};

// An order-dependent 64-bit digest of what happened.
class Digest {
 public:
  void add(std::uint64_t value) {
    state_ = (state_ ^ value) * 0x9E3779B97F4A7C15ULL;
    state_ ^= state_ >> 29;
  }
  void add(Instant when) { add(static_cast<std::uint64_t>(when.time_since_epoch().count())); }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0x243F6A8885A308D3ULL;  // pi
};

}  // namespace penstock::sim
