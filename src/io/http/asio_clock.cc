#include "io/http/asio_clock.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <map>
#include <unordered_map>
#include <utility>

namespace penstock::http {
namespace {

using Steady = std::chrono::steady_clock;

Steady::time_point to_steady(Instant when) {
  return Steady::time_point(std::chrono::duration_cast<Steady::duration>(when.time_since_epoch()));
}

class AsioWatch final : public Watch {
 public:
  AsioWatch(boost::asio::io_context& context, int fd) : descriptor_(context, fd) {}
  ~AsioWatch() override { descriptor_.release(); }
  AsioWatch(const AsioWatch&) = delete;
  AsioWatch& operator=(const AsioWatch&) = delete;

  void when_readable(std::function<void()> call) override {
    wait(boost::asio::posix::descriptor_base::wait_read, std::move(call));
  }
  void when_writable(std::function<void()> call) override {
    wait(boost::asio::posix::descriptor_base::wait_write, std::move(call));
  }

 private:
  void wait(boost::asio::posix::descriptor_base::wait_type what, std::function<void()> call) {
    // A wait that is over may be queued in the loop when the watch ends.
    descriptor_.async_wait(what, [alive = std::weak_ptr(alive_),
                                  call = std::move(call)](const boost::system::error_code& error) {
      if (!error && !alive.expired()) call();
    });
  }

  boost::asio::posix::stream_descriptor descriptor_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>();
};

}  // namespace

struct AsioClock::State : std::enable_shared_from_this<State> {
  explicit State(boost::asio::io_context& c) : context(c), timer(c) {}

  // Makes the kernel timer stand at the earliest call, unless it already stands there or earlier:
  // a timer that fires too early only looks and is armed again.
  void arm() {
    if (calls.empty() || calls.begin()->first.first >= armed) return;
    armed = calls.begin()->first.first;
    timer.expires_at(to_steady(armed));
    timer.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
      if (error) return;
      if (const auto state = weak.lock()) state->run_due();
    });
  }

  void run_due() {
    armed = Instant::max();
    const Instant time(std::chrono::duration_cast<Duration>(Steady::now().time_since_epoch()));
    const TimerId newest = last_id;  // calls added meanwhile wait for the next turn of the loop
    while (!calls.empty()) {
      const auto first = calls.begin();
      if (first->first.first > time || first->first.second > newest) break;
      const auto call = std::move(first->second);
      times.erase(first->first.second);
      calls.erase(first);
      call();
    }
    arm();
  }

  boost::asio::io_context& context;
  boost::asio::steady_timer timer;
  std::map<std::pair<Instant, TimerId>, std::function<void()>> calls;
  std::unordered_map<TimerId, Instant> times;
  TimerId last_id = 0;
  Instant armed = Instant::max();
};

AsioClock::AsioClock(boost::asio::io_context& context) : state_(std::make_shared<State>(context)) {}
AsioClock::~AsioClock() = default;

Instant AsioClock::now() const {
  return Instant(std::chrono::duration_cast<Duration>(Steady::now().time_since_epoch()));
}

Clock::TimerId AsioClock::call_at(Instant when, std::function<void()> call) {
  const TimerId id = ++state_->last_id;
  state_->calls.emplace(std::pair(when, id), std::move(call));
  state_->times.emplace(id, when);
  state_->arm();
  return id;
}

void AsioClock::cancel(TimerId timer) {
  const auto found = state_->times.find(timer);
  if (found == state_->times.end()) return;
  state_->calls.erase({found->second, timer});
  state_->times.erase(found);
}

void AsioClock::post(std::function<void()> call) {
  boost::asio::post(state_->context, std::move(call));
}

std::unique_ptr<Watch> AsioClock::watch(int fd) {
  return std::make_unique<AsioWatch>(state_->context, fd);
}

boost::asio::io_context& AsioClock::context() const {
  return state_->context;
}

}  // namespace penstock::http
