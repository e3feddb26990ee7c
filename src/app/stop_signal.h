// Waiting for SIGTERM and SIGINT in the main thread of a process that has others.
//
// block_stop_signals() comes before any thread is started, so that no thread is interrupted; then
// the main thread waits. A child of the supervisor ignores SIGINT: Ctrl-C reaches the whole process
// group, and the supervisor decides the order in which things stop. Concurrency: main thread.
#pragma once

#include <functional>

#include "base/units.h"

namespace penstock {

void block_stop_signals(bool supervised);
// Returns when a stop signal comes; calls `every_second` meanwhile, if there is one.
void wait_for_stop_signal(const std::function<void()>& every_second = {});
// Waits until `done` says so (asked every 20 ms), at most `limit`; false on time-out or another
// signal.
bool wait_until(const std::function<bool()>& done, Duration limit);
// For a process that was told to stop and has nothing left to answer: if it is still there after
// `limit`, it says which threads are and what each waits for, and ends with an error. Whoever
// started it is not left with one that neither works nor goes.
void end_within(Duration limit);

}  // namespace penstock
