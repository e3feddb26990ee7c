#include "io/threads/thread_pool.h"

#include <atomic>
#include <latch>

#include <doctest/doctest.h>

namespace penstock {

TEST_CASE("queued work runs before the pool goes, and the queue has a limit") {
  std::atomic<int> ran{0};
  std::latch started(1);
  std::latch release(1);
  {
    ThreadPool pool(1, 2);
    CHECK(pool.submit([&] {
      started.count_down();
      release.wait();
      ++ran;
    }));
    started.wait();
    CHECK(pool.submit([&] { ++ran; }));
    CHECK(pool.submit([&] { ++ran; }));
    CHECK(!pool.submit([&] { ++ran; }));
    release.count_down();
  }
  CHECK(ran == 3);
}

}  // namespace penstock
