// PollLoop: a shard's loop for tests and benches: posted calls and watched descriptors.
//
// Production runs shards on Asio's loop (io/http/asio_clock.h). The clocks of tests and benches
// stand on this one: they decide what time it is and when to turn the loop.
//
// Invariants: as port/poller.h and, for post(), port/clock.h.
// Concurrency: one thread runs it; post() from any.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/units.h"
#include "io/files/descriptor.h"
#include "port/poller.h"

namespace penstock::control {

class PollLoop final : public Poller {
 public:
  PollLoop();

  void post(std::function<void()> call);
  std::unique_ptr<Watch> watch(int fd) override;
  // Waits for something to run, `limit` at most (negative: as long as it takes), and runs it.
  void turn(Duration limit);

 private:
  struct Watched {
    int fd = -1;
    std::function<void()> readable = {};
    std::function<void()> writable = {};
  };
  class WatchOfLoop;

  Descriptor news_;  // an eventfd: readable while calls are posted
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  std::map<std::uint64_t, Watched> watched_;
  std::uint64_t last_watch_ = 0;
};

}  // namespace penstock::control
