#include "io/control/poll_loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace penstock::control {

class PollLoop::WatchOfLoop final : public Watch {
 public:
  WatchOfLoop(PollLoop& loop, std::uint64_t id) : loop_(loop), id_(id) {}
  ~WatchOfLoop() override { loop_.watched_.erase(id_); }
  WatchOfLoop(const WatchOfLoop&) = delete;
  WatchOfLoop& operator=(const WatchOfLoop&) = delete;

  void when_readable(std::function<void()> call) override {
    loop_.watched_.at(id_).readable = std::move(call);
  }
  void when_writable(std::function<void()> call) override {
    loop_.watched_.at(id_).writable = std::move(call);
  }

 private:
  PollLoop& loop_;
  std::uint64_t id_;
};

PollLoop::PollLoop() : news_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  ENSURE(news_.get() >= 0);
}

void PollLoop::post(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  posted_.push_back(std::move(call));
  if (posted_.size() == 1) ::eventfd_write(news_.get(), 1);
}

std::unique_ptr<Watch> PollLoop::watch(int fd) {
  watched_[++last_watch_].fd = fd;
  return std::make_unique<WatchOfLoop>(*this, last_watch_);
}

void PollLoop::turn(Duration limit) {
  std::vector<pollfd> polled{{news_.get(), POLLIN, 0}};
  std::vector<std::uint64_t> ids{0};
  for (const auto& [id, watched] : watched_) {
    const int events = (watched.readable ? POLLIN : 0) | (watched.writable ? POLLOUT : 0);
    if (events == 0) continue;
    polled.push_back({watched.fd, static_cast<short>(events), 0});
    ids.push_back(id);
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec wait{seconds.count(), (limit - seconds).count()};
  ::ppoll(polled.data(), polled.size(), limit < Duration::zero() ? nullptr : &wait, nullptr);

  std::vector<std::function<void()>> calls;
  if (polled[0].revents != 0) {
    eventfd_t count = 0;
    const std::lock_guard lock(mutex_);
    ::eventfd_read(news_.get(), &count);
    calls.swap(posted_);
  }
  for (const auto& call : calls)
    call();
  for (std::size_t i = 1; i < polled.size(); ++i) {
    const auto ready = [&](short events, std::function<void()> Watched::* call) {
      // An earlier call may have ended the watch.
      const auto at = watched_.find(ids[i]);
      if ((polled[i].revents & (events | POLLHUP | POLLERR)) == 0 || at == watched_.end()) return;
      if (auto taken = std::exchange(at->second.*call, nullptr)) taken();
    };
    ready(POLLIN, &Watched::readable);
    ready(POLLOUT, &Watched::writable);
  }
}

}  // namespace penstock::control
