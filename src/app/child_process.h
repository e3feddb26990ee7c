// One child of the supervisor: started with a pipe for its readiness, ended with it.
//
// The child gets its own process group (Ctrl-C in the terminal reaches the supervisor only),
// /dev/null as input, default signals, and is killed by the kernel when the supervisor's thread
// ends, however it ends.
//
// Errors: kIo when the system refuses a pipe or a process.
// Concurrency: spawn from the thread that lives as long as the process.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>

#include "base/result.h"

namespace penstock {

class ChildProcess {
 public:
  // Runs arguments[0] with the arguments and `--ready-fd N` after them.
  static Result<ChildProcess> spawn(std::span<const std::string> arguments);
  // Kills and reaps a child that still runs.
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;

  pid_t pid() const { return pid_; }
  // The reading end, for poll; -1 after the report was taken.
  int ready_fd() const { return ready_fd_; }

  // Reads what is there. A value once a whole line or the end of file came: the line without its
  // newline, empty for an end of file. The pipe is closed then.
  std::optional<std::string> take_report();

  // The wait status if it has ended, reaping it; never blocks.
  std::optional<int> poll_exit();

  void signal(int number) const;

 private:
  ChildProcess(pid_t pid, int ready_fd) : pid_(pid), ready_fd_(ready_fd) {}
  void close_pipe();

  pid_t pid_ = 0;  // 0: reaped or moved from
  int ready_fd_ = -1;
  std::string report_;
};

// "exit code 3", "signal 9 (Killed)".
std::string describe_exit(int wait_status);

}  // namespace penstock
