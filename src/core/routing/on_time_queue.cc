#include "core/routing/on_time_queue.h"

#include <algorithm>

#include "core/routing/cost_model.h"

namespace penstock::routing {
namespace {

bool goes_after(const WaitingPrompt& a, const WaitingPrompt& b) {
  return a.latest_start != b.latest_start ? a.latest_start > b.latest_start
                                          : a.id.value > b.id.value;
}

}  // namespace

void OnTimeQueue::push(const WaitingPrompt& prompt, Instant now, double ranks) {
  waiting_.insert(std::ranges::upper_bound(waiting_, prompt, goes_after), prompt);
  if (options_.put_off) put_off_costliest(now, ranks);
}

void OnTimeQueue::put_off_costliest(Instant now, double ranks) {
  const double per_second = std::max(ranks, 1e-9) * options_.useful_share;
  double before = 0;
  // From the first to go: index from the back.
  for (std::size_t k = waiting_.size(); k-- > 0;) {
    const double left = to_seconds(waiting_[k].latest_start - now);
    if (before <= std::max(left, 0.0) * per_second) {
      before += waiting_[k].work_seconds;
      continue;
    }
    std::size_t costliest = k;
    for (std::size_t i = k; i < waiting_.size(); ++i)
      if (waiting_[i].work_seconds > waiting_[costliest].work_seconds) costliest = i;
    if (costliest != k) before += waiting_[k].work_seconds - waiting_[costliest].work_seconds;
    late_.push_back(waiting_[costliest]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(costliest));
  }
}

void OnTimeQueue::give_up(Instant now, std::vector<RequestId>& expired) {
  while (!late_.empty() && now - late_.front().arrival > options_.late_wait_max) {
    expired.push_back(late_.front().id);
    late_.pop_front();
  }
}

const WaitingPrompt* OnTimeQueue::front() const {
  if (!waiting_.empty()) return &waiting_.back();
  return late_.empty() ? nullptr : &late_.front();
}

std::optional<WaitingPrompt> OnTimeQueue::pop(Instant now, std::vector<RequestId>& expired) {
  give_up(now, expired);
  std::optional<WaitingPrompt> next;
  if (!waiting_.empty()) {
    next = waiting_.back();
    waiting_.pop_back();
  } else if (!late_.empty()) {
    next = late_.front();
    late_.pop_front();
  }
  return next;
}

bool OnTimeQueue::remove(RequestId id) {
  const auto is = [id](const WaitingPrompt& p) { return p.id == id; };
  return std::erase_if(waiting_, is) + std::erase_if(late_, is) > 0;
}

double OnTimeQueue::waiting_seconds() const {
  double seconds = 0;
  for (const WaitingPrompt& prompt : waiting_)
    seconds += prompt.work_seconds;
  return seconds;
}

}  // namespace penstock::routing
