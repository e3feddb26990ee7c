#include "sim/event_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace penstock::sim {

Clock::TimerId EventQueue::call_at(Instant when, std::function<void()> call) {
  const TimerId id = ++last_id_;
  heap_.push_back({std::max(when, now_), id, std::move(call)});
  std::ranges::push_heap(heap_, later);
  pending_.insert(id);
  return id;
}

void EventQueue::cancel(TimerId timer) {
  if (pending_.erase(timer) != 0) cancelled_.insert(timer);
}

bool EventQueue::run_until(Instant end, std::uint64_t events_max) {
  std::uint64_t run = 0;
  while (!heap_.empty() && heap_.front().when <= end) {
    std::ranges::pop_heap(heap_, later);
    Event event = std::move(heap_.back());
    heap_.pop_back();
    if (cancelled_.erase(event.id) != 0) continue;
    if (run++ == events_max) {  // put it back: nothing is lost
      heap_.push_back(std::move(event));
      std::ranges::push_heap(heap_, later);
      return false;
    }
    pending_.erase(event.id);
    now_ = event.when;
    ++events_;
    event.call();
    if (std::exchange(stopped_, false)) return false;
  }
  if (end != Instant::max()) now_ = std::max(now_, end);
  return true;
}

bool EventQueue::run(std::uint64_t events_max) {
  return run_until(Instant::max(), events_max);
}

}  // namespace penstock::sim
