#include "io/disk/device_watch.h"

#include <doctest/doctest.h>
#include <chrono>
#include <vector>

namespace penstock::disk {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Harness {
  DeviceWatch watch;
  Instant now{seconds(100)};
  Harness() { watch.advance(now); }
  void pass(Duration time) { watch.advance(now += time); }
  // One operation that takes `time`, in steps of polls.
  void operation(Duration time) {
    auto done = watch.watched([](int, std::size_t) {});
    for (; time > Duration(); time -= milliseconds(500))
      pass(milliseconds(500));
    done(0, 0);
  }
};

TEST_CASE("the oldest operation counts, whatever ends between") {
  Harness h;
  CHECK(h.watch.oldest() == Duration());
  auto first = h.watch.watched([](int, std::size_t) {});
  h.pass(milliseconds(300));
  auto second = h.watch.watched([](int, std::size_t) {});
  h.pass(milliseconds(300));
  CHECK(h.watch.oldest() == milliseconds(600));
  first(0, 0);
  CHECK(h.watch.oldest() == milliseconds(300));
  CHECK(h.watch.under_way() == 1);
  second(0, 0);
  CHECK(h.watch.oldest() == Duration());
}

TEST_CASE("while the process stood still the device was not late") {
  Harness h;
  auto done = h.watch.watched([](int, std::size_t) {});
  h.pass(seconds(600));
  CHECK(h.watch.oldest() == seconds(1));
  done(0, 0);
}

TEST_CASE("a device is slow when it stays slow, and that is told once") {
  Harness h;
  // One late operation among many, or for a short time, is nothing.
  h.operation(seconds(3));
  for (int i = 0; i < 100; ++i)
    h.operation(milliseconds(500));
  CHECK_FALSE(h.watch.take_slow());
  int told = 0;
  for (int i = 0; i < 50; ++i) {
    h.operation(seconds(2));
    told += h.watch.take_slow() ? 1 : 0;
  }
  CHECK(told == 1);
  for (int i = 0; i < 700; ++i)
    h.operation(milliseconds(500));
  for (int i = 0; i < 50; ++i) {
    h.operation(seconds(2));
    told += h.watch.take_slow() ? 1 : 0;
  }
  CHECK(told == 2);
}

}  // namespace
}  // namespace penstock::disk
