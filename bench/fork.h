// Fork: a process of a bench's own, for the other side of a socket: a fork of this one while it has
// one thread. It tells one line when it serves, and is killed with its object, or with this
// process.
//
// Errors: line() is empty when the child ended without telling. Concurrency: before any thread.
#pragma once

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>

namespace penstock::bench {

class Fork {
 public:
  // `run` is the child's whole life; it writes to `report` with tell(). The constructor waits for
  // that line.
  explicit Fork(const std::function<void(int report)>& run) {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() == parent) run(ends[1]);
      ::_exit(1);
    }
    ::close(ends[1]);
    char byte = 0;
    while (::read(ends[0], &byte, 1) == 1 && byte != '\n')
      line_ += byte;
    ::close(ends[0]);
  }
  ~Fork() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Fork(const Fork&) = delete;
  Fork& operator=(const Fork&) = delete;
  const std::string& line() const { return line_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  std::string line_;
};

inline void tell(int report, const std::string& line) {
  (void)!::write(report, (line + "\n").data(), line.size() + 1);
}

}  // namespace penstock::bench
