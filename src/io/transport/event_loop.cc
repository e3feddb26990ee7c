#include "io/transport/event_loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>

#include "base/check.h"

namespace penstock::transport {
namespace {

constexpr EventLoop::WatchId kWake = 0;
constexpr int kEventsMax = 64;
constexpr Duration kPatienceMax = std::chrono::seconds(60);

}  // namespace

EventLoop::EventLoop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  ENSURE(epoll_.get() >= 0);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWake;
  ENSURE(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.fd(), &event) == 0);
}

Instant EventLoop::now() const {
  return Instant(
      std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

Clock::TimerId EventLoop::call_at(Instant when, std::function<void()> call) {
  const TimerId id = ++last_timer_;
  calls_.emplace(std::pair(when, id), std::move(call));
  times_.emplace(id, when);
  return id;
}

void EventLoop::cancel(TimerId timer) {
  const auto found = times_.find(timer);
  if (found == times_.end()) return;
  calls_.erase({found->second, timer});
  times_.erase(found);
}

void EventLoop::post(std::function<void()> call) {
  bool first = false;
  {
    const std::scoped_lock lock(posted_mutex_);
    first = posted_.empty();
    posted_.push_back(std::move(call));
  }
  if (first) wake_.wake();
}

EventLoop::WatchId EventLoop::watch(int fd, std::uint32_t events, Handler handler) {
  const WatchId id = ++last_watch_;
  watches_.emplace(id, Watch{fd, events, std::make_shared<Handler>(std::move(handler))});
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  ENSURE(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
  return id;
}

void EventLoop::change(WatchId watch, std::uint32_t events) {
  Watch& w = watches_.at(watch);
  if (std::exchange(w.events, events) == events) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = watch;
  ENSURE(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, w.fd, &event) == 0);
}

void EventLoop::unwatch(WatchId watch) {
  const auto found = watches_.find(watch);
  if (found == watches_.end()) return;
  ENSURE(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.fd, nullptr) == 0);
  watches_.erase(found);
}

void EventLoop::add_work(std::function<bool()> piece) {
  pieces_.push_back(std::move(piece));
}

void EventLoop::run() {
  while (!stopped_.load(std::memory_order_acquire)) {
    run_due();
    wait();
    if (!std::exchange(work_, false)) continue;
    bool more = false;
    for (const auto& piece : pieces_)
      more |= piece();
    work_ |= more;
  }
}

void EventLoop::stop() {
  stopped_.store(true, std::memory_order_release);
  wake_.wake();
}

void EventLoop::run_due() {
  if (calls_.empty()) return;
  const Instant time = now();
  const TimerId newest = last_timer_;  // calls added meanwhile wait for the next turn
  while (!calls_.empty()) {
    const auto first = calls_.begin();
    if (first->first.first > time || first->first.second > newest) break;
    const auto call = std::move(first->second);
    times_.erase(first->first.second);
    calls_.erase(first);
    call();
  }
}

void EventLoop::run_posted() {
  std::vector<std::function<void()>> calls;
  {
    const std::scoped_lock lock(posted_mutex_);
    calls.swap(posted_);
  }
  for (auto& call : calls) {
    call();
    call = nullptr;  // what it held goes before the next runs
  }
}

Duration EventLoop::patience() const {
  if (work_) return Duration::zero();
  if (calls_.empty()) return kPatienceMax;
  return std::clamp(calls_.begin()->first.first - now(), Duration::zero(), kPatienceMax);
}

void EventLoop::wait() {
  const Duration left = patience();
  timespec timeout{};
  timeout.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(left).count();
  timeout.tv_nsec = (left % std::chrono::seconds(1)).count();
  std::array<epoll_event, kEventsMax> events;
  const int n = ::epoll_pwait2(epoll_.get(), events.data(), kEventsMax, &timeout, nullptr);
  for (int i = 0; i < n; ++i) {
    // Copied: the kernel's structure is packed.
    const WatchId id = events[static_cast<std::size_t>(i)].data.u64;
    const std::uint32_t happened = events[static_cast<std::size_t>(i)].events;
    if (id == kWake) {
      wake_.clear();
      run_posted();
      continue;
    }
    const auto found = watches_.find(id);
    if (found == watches_.end()) continue;
    const std::shared_ptr<Handler> handler = found->second.handler;
    (*handler)(happened);
  }
}

}  // namespace penstock::transport
