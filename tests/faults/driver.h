// What all parts of the fault suite's driver share: the seed, failing, and waiting.
#pragma once

#include <chrono>
#include <string>
#include <thread>

#include <fmt/format.h>

namespace penstock::faults {

using SteadyClock = std::chrono::steady_clock;

// Ends the suite: says what was wrong, the seed and where the folder is that it leaves behind.
[[noreturn]] void fail_suite(const std::string& what);

template <typename... Arguments>
void require(bool condition, fmt::format_string<Arguments...> what, Arguments&&... arguments) {
  if (!condition) fail_suite(fmt::format(what, std::forward<Arguments>(arguments)...));
}

// Waits until it is true; fails the suite after a time that only a hang takes.
template <typename Condition>
void wait_until(const std::string& what, Condition condition,
                std::chrono::seconds limit = std::chrono::seconds(60)) {
  const auto end = SteadyClock::now() + limit;
  while (!condition()) {
    require(SteadyClock::now() < end, "waited {} s in vain for {}", limit.count(), what);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace penstock::faults
