// AsioClock: the Clock and Poller ports on one io_context, in real monotonic time.
//
// Deadlines stand in one ordered set with a single kernel timer for the earliest, so arming and
// cancelling a call costs a tree insertion and no system call unless it is the earliest.
//
// Invariants: as port/clock.h and port/poller.h; calls due together run in the order of their
// times, then of call_at(). Concurrency: the thread that runs the io_context, except post(). The
// io_context must outlive the clock; calls pending at destruction never run.
#pragma once

#include <functional>
#include <memory>

#include "port/clock.h"
#include "port/poller.h"

namespace boost::asio {
class io_context;
}

namespace penstock::http {

class AsioClock final : public Clock, public Poller {
 public:
  explicit AsioClock(boost::asio::io_context& context);
  ~AsioClock() override;

  Instant now() const override;
  TimerId call_at(Instant when, std::function<void()> call) override;
  void cancel(TimerId timer) override;
  void post(std::function<void()> call) override;
  std::unique_ptr<Watch> watch(int fd) override;

  boost::asio::io_context& context() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace penstock::http
