// ControlLink: one control stream between a gateway and a worker, both directions, on virtual time.
//
// What is sent arrives whole and in order after `latency`, or not at all when the stream breaks
// first; nothing is ever lost from the middle of a stream, as of a socket. Different streams
// overtake each other. An end that closes is told to the other after what it sent; one that is cut
// loses what is under way, both ways. While held (a network that lets nothing pass) everything
// waits.
// Concurrency: one thread.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "tests/support/virtual_clock.h"

namespace penstock::simulated {

enum class Side : std::uint8_t { kGateway, kWorker };

class ControlLink : public std::enable_shared_from_this<ControlLink> {
 public:
  // Runs a call on the receiving process: at once, later, or never.
  using Run = std::function<void(std::function<void()>)>;

  struct End {
    Run run;
    std::function<void()> ended;  // the other end closed, or the stream broke
  };

  ControlLink(testing::VirtualClock& clock, std::function<Duration()> latency, End gateway,
              End worker)
      : clock_(clock), latency_(std::move(latency)) {
    at(Side::kGateway).end = std::move(gateway);
    at(Side::kWorker).end = std::move(worker);
  }

  // Runs `call` at the other end, if that is still open then.
  void send(Side from, std::function<void()> call) {
    if (!at(from).open) return;
    arrive(other(from), std::move(call), epoch_);
  }
  // The end's process closed it, or died; it is not told of anything any more.
  void close(Side side) {
    if (!std::exchange(at(side).open, false)) return;
    tell_end(other(side));
  }
  // It breaks: what is under way is lost, and both ends are told.
  void cut() {
    ++epoch_;
    tell_end(Side::kGateway);
    tell_end(Side::kWorker);
  }
  void hold(Duration duration) { held_until_ = clock_.now() + duration; }
  bool open(Side side) { return at(side).open; }

 private:
  struct State {
    End end;
    bool open = true;
    Instant last{};
  };
  static Side other(Side side) { return side == Side::kGateway ? Side::kWorker : Side::kGateway; }
  State& at(Side side) { return side == Side::kGateway ? gateway_ : worker_; }

  void tell_end(Side side) {
    arrive(
        side,
        [this, side] {
          if (std::exchange(at(side).open, false)) at(side).end.ended();
        },
        epoch_);
  }
  void arrive(Side side, std::function<void()> call, std::uint64_t epoch) {
    Instant& last = at(side).last;
    last = std::max({last, clock_.now() + latency_(), held_until_});
    clock_.call_at(last, [self = shared_from_this(), side, call = std::move(call), epoch] {
      if (!self->at(side).open || self->epoch_ != epoch) return;
      // A stopped process takes it up later; by then the stream may have ended.
      self->at(side).end.run([self, side, call, epoch] {
        if (self->at(side).open && self->epoch_ == epoch) call();
      });
    });
  }

  testing::VirtualClock& clock_;
  std::function<Duration()> latency_;
  State gateway_;
  State worker_;
  Instant held_until_{};
  std::uint64_t epoch_ = 0;
};

}  // namespace penstock::simulated
