// EventLoop: one thread's epoll loop, and its Clock.
//
// A turn: calls that are due, calls that were posted, descriptors that are ready, then a slice of
// background work (long copies), which never holds a turn up for longer than its pieces take.
//
// Invariants: as port/clock.h; a handler is not called any more once unwatch() has returned, also
// for events of the same turn. Errors: none. Concurrency: everything on the thread that runs the
// loop, or before it runs; post() and stop() from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/files/descriptor.h"
#include "io/sockets/unix_socket.h"
#include "port/clock.h"

namespace penstock::transport {

class EventLoop final : public Clock {
 public:
  using Handler = std::function<void(std::uint32_t events)>;  // as epoll names them
  using WatchId = std::uint64_t;                              // 0 is never given out

  EventLoop();

  Instant now() const override;
  TimerId call_at(Instant when, std::function<void()> call) override;
  void cancel(TimerId timer) override;
  void post(std::function<void()> call) override;

  // Calls `handler` while one of `events` is there (level-triggered), until unwatch().
  WatchId watch(int fd, std::uint32_t events, Handler handler);
  void change(WatchId watch, std::uint32_t events);
  void unwatch(WatchId watch);
  // A piece of work per turn: true while there is more. Called every turn once woken.
  void add_work(std::function<bool()> piece);
  // Makes the pieces of work run again.
  void wake_work() { work_ = true; }

  // Runs until stop().
  void run();
  void stop();

 private:
  struct Watch {
    int fd = -1;
    std::uint32_t events = 0;
    std::shared_ptr<Handler> handler;  // stays alive while it runs, also when it unwatches itself
  };

  void run_due();
  void run_posted();
  // Until the next call, or nothing when there is work.
  Duration patience() const;
  void wait();

  Descriptor epoll_;
  sockets::WakeEvent wake_;
  std::atomic<bool> stopped_ = false;
  std::mutex posted_mutex_;
  std::vector<std::function<void()>> posted_;

  std::map<std::pair<Instant, TimerId>, std::function<void()>> calls_;
  std::unordered_map<TimerId, Instant> times_;
  TimerId last_timer_ = 0;
  std::unordered_map<WatchId, Watch> watches_;
  WatchId last_watch_ = 0;
  std::vector<std::function<bool()>> pieces_;
  bool work_ = false;
};

}  // namespace penstock::transport
