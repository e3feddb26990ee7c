#include "io/http/asio_clock.h"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <thread>

#include <doctest/doctest.h>

namespace penstock::http {

TEST_CASE("calls run in the order of their times, then of call_at(), and cancelled ones never") {
  boost::asio::io_context context;
  AsioClock clock(context);
  std::string order;
  const auto start = clock.now();
  const auto call = [&](int ms, char name) {
    return clock.call_at(start + std::chrono::milliseconds(ms), [&order, name] { order += name; });
  };
  call(3, 'd');
  call(1, 'a');
  const auto cancelled = call(2, 'x');
  call(1, 'b');
  call(-5, '0');
  call(2, 'c');
  CHECK(order.empty());
  clock.cancel(cancelled);
  clock.cancel(cancelled);
  clock.cancel(12345);
  context.run();
  CHECK(order == "0abcd");
  CHECK(clock.now() >= start + std::chrono::milliseconds(3));
}

TEST_CASE("a call may add and cancel calls; one that is due at once waits for the next turn") {
  boost::asio::io_context context;
  AsioClock clock(context);
  std::string order;
  Clock::TimerId later = 0;
  clock.call_at(Instant(), [&] {
    clock.cancel(later);
    clock.call_at(Instant(), [&] { order += 'b'; });
    order += 'a';
  });
  later = clock.call_at(Instant(Duration(1)), [&] { order += 'x'; });
  context.run();
  CHECK(order == "ab");
}

TEST_CASE("post() comes from any thread; a destroyed clock runs nothing more") {
  boost::asio::io_context context;
  auto clock = std::make_unique<AsioClock>(context);
  int posted = 0;
  std::thread other([&] { clock->post([&] { ++posted; }); });
  other.join();
  clock->call_at(clock->now() + std::chrono::milliseconds(1), [&] { posted += 100; });
  clock.reset();
  context.run();
  CHECK(posted == 1);
}

}  // namespace penstock::http
