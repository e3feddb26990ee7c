// The supervisor: starts the processes of one service, waits until all are ready, restarts what
// dies, and stops them in order.
//
// Children start one after the other, each when the one before it is ready (app/ready.h). A child
// that fails before the service was ever ready ends the whole start with its reason; later deaths
// are restarted after RestartPolicy's delay. SIGTERM, SIGINT or SIGHUP stops: from the last child
// of the list to the first, each gets SIGTERM and its time, then SIGKILL. A second signal kills all
// at once.
//
// Invariants: no child outlives supervise(); they are killed by the kernel if this process dies.
// Errors: a child's own reason, or kUnavailable when it died without one. Concurrency: owns the
// process's signals and its main thread while it runs; no other thread may exist that has them
// unblocked.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/ready.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock {

struct ChildSpec {
  std::string name;                    // for logs
  std::vector<std::string> arguments;  // the program first; `--ready-fd N` is added
  Duration stop_timeout{};             // from SIGTERM to SIGKILL
};

struct SupervisorPlan {
  std::vector<ChildSpec> children;
  // Called once, when every child is ready; reports in the order of the children. An error stops
  // all.
  std::function<Status(const std::vector<ReadyReport>&)> on_ready;
};

// Runs until stopped. 0 after an orderly stop, 130 after a second signal, the exit code of
// kDeadlineExceeded when a child did not stop in its time and was killed.
Result<int> supervise(const SupervisorPlan& plan);

}  // namespace penstock
