#include "app/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "app/values.h"
#include "base/result.h"
#include "io/telemetry/log.h"

namespace penstock {
namespace {

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

// "name in kernel function (system call and arguments)" of each thread of this process.
std::string threads_now() {
  std::string out;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    const auto first_line = [&task](const char* of) {
      std::string line;
      std::getline(std::ifstream(task.path() / of), line);
      return line;
    };
    out += fmt::format("{}{} in {} ({})", out.empty() ? "" : "; ", first_line("comm"),
                       first_line("wchan"), first_line("syscall"));
  }
  return out;
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

void end_within(Duration limit) {
  std::thread([limit] {
    std::this_thread::sleep_for(limit);
    ::alarm(2);  // the log may be what is stuck
    log_error("still there {} after everything was answered; ending at once. Threads: {}",
              format_duration(limit), threads_now());
    std::_Exit(error_info(ErrorCode::kInternal).exit_code);
  }).detach();
}

}  // namespace penstock
