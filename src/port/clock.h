// Clock: time and deferred calls for one shard; with it, awaits that have a deadline.
//
// One Clock belongs to one shard (one thread). Production implements it on the shard's io_context
// (io/http/asio_clock.h), the simulator on its queue of virtual time. Service code awaits nothing
// but ports and what stands here, and every outward await has a deadline.
//
// Invariants: callbacks run on the shard's thread, never inside call_at(); equal times run in the
// order of their calls; a cancelled call never runs.
// Units: Instant is monotonic nanoseconds. Concurrency: shard thread only, except post().
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "base/task.h"
#include "base/units.h"

namespace penstock {

class Clock {
 public:
  using TimerId = std::uint64_t;  // 0 is never given out

  virtual ~Clock() = default;
  virtual Instant now() const = 0;
  // Runs `call` on the shard's thread at or after `when`.
  virtual TimerId call_at(Instant when, std::function<void()> call) = 0;
  virtual void cancel(TimerId timer) = 0;
  // Runs `call` on the shard's thread soon; callable from any thread.
  virtual void post(std::function<void()> call) = 0;
};

// Suspends the caller for `duration`.
class Sleep {
 public:
  Sleep(Clock& clock, Duration duration) : clock_(clock), duration_(duration) {}
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;
  ~Sleep() {
    if (timer_ != 0) clock_.cancel(timer_);
  }
  bool await_ready() const noexcept { return duration_ <= Duration::zero(); }
  void await_suspend(std::coroutine_handle<> h) {
    timer_ = clock_.call_at(clock_.now() + duration_, [this, h] {
      timer_ = 0;
      h.resume();
    });
  }
  void await_resume() const noexcept {}

 private:
  Clock& clock_;
  Duration duration_;
  Clock::TimerId timer_ = 0;
};

// A bounded queue between callbacks and one coroutine of the same shard.
template <typename T>
class Channel {
 public:
  Channel(Clock& clock, std::size_t capacity) : clock_(clock), capacity_(capacity) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel() {
    if (timer_ != 0) clock_.cancel(timer_);
  }

  // Adds an item and wakes the reader. False when full or closed: the item is not taken.
  bool push(T item) {
    if (closed_ || queue_.size() >= capacity_) return false;
    queue_.push_back(std::move(item));
    wake();
    return true;
  }
  // No more items; a reader gets what is queued and then nothing.
  void close() {
    closed_ = true;
    wake();
  }
  bool closed() const { return closed_; }
  std::size_t size() const { return queue_.size(); }
  // The queued items, for a writer that merges into the last one instead of adding.
  std::deque<T>& items() { return queue_; }

  // Awaits the next item: nullopt when closed and empty, or when the deadline passes first.
  auto pop(Instant deadline) {
    struct Awaiter {
      Channel& channel;
      Instant deadline;
      bool await_ready() const noexcept { return !channel.queue_.empty() || channel.closed_; }
      void await_suspend(std::coroutine_handle<> h) const {
        ENSURE(!channel.reader_);
        channel.reader_ = h;
        channel.deadline_ = deadline;
        if (channel.timer_ == 0 || channel.timer_at_ > deadline) channel.arm();
      }
      std::optional<T> await_resume() const {
        if (channel.queue_.empty()) return std::nullopt;
        std::optional<T> item(std::move(channel.queue_.front()));
        channel.queue_.pop_front();
        return item;
      }
    };
    return Awaiter{*this, deadline};
  }

 private:
  void wake() {
    if (reader_) std::exchange(reader_, nullptr).resume();
  }
  // The timer stays armed from one pop to the next: items come by the thousand, deadlines move
  // little and hardly one is reached. Too early, it looks and is armed again.
  void arm() {
    if (timer_ != 0) clock_.cancel(timer_);
    timer_at_ = deadline_;
    timer_ = clock_.call_at(timer_at_, [this] {
      timer_ = 0;
      if (!reader_) return;
      if (timer_at_ < deadline_) return arm();
      wake();
    });
  }

  Clock& clock_;
  std::size_t capacity_;
  std::deque<T> queue_;
  bool closed_ = false;
  std::coroutine_handle<> reader_;
  Instant deadline_;  // of the reader
  Clock::TimerId timer_ = 0;
  Instant timer_at_;
};

}  // namespace penstock
