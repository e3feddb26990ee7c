#include "app/stop_signal.h"

#include <signal.h>

#include <chrono>
#include <ctime>

namespace penstock {
namespace {

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

void block_stop_signals(bool supervised) {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  if (supervised) signal(SIGINT, SIG_IGN);
}

void wait_for_stop_signal(const std::function<void()>& every_second) {
  const sigset_t set = stop_signals();
  const timespec second{1, 0};
  while (sigtimedwait(&set, nullptr, &second) < 0) {
    if (every_second) every_second();
  }
}

bool wait_until(const std::function<bool()>& done, Duration limit) {
  const sigset_t set = stop_signals();
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!done()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    const timespec step{0, 20'000'000};
    if (sigtimedwait(&set, nullptr, &step) > 0) return false;
  }
  return true;
}

}  // namespace penstock
