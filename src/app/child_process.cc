#include "app/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>
#include <vector>

namespace penstock {
namespace {

constexpr std::size_t kReportMax = 1 << 16;

// Between fork and exec: only calls that are safe there.
[[noreturn]] void become(char* const* arguments, int ready_fd, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before prctl took effect
  // Handlers first: a signal that waits must not run one of the parent's.
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGCHLD, SIGPIPE})
    ::signal(number, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDONLY);
  if (null >= 0) ::dup2(null, STDIN_FILENO);
  ::fcntl(ready_fd, F_SETFD, 0);
  ::execv(arguments[0], arguments);
  ::_exit(127);
}

}  // namespace

Result<ChildProcess> ChildProcess::spawn(std::span<const std::string> arguments) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0)
    return fail(ErrorCode::kIo,
                fmt::format("cannot make a pipe: {}", std::generic_category().message(errno)));
  std::vector<std::string> all(arguments.begin(), arguments.end());
  all.emplace_back("--ready-fd");
  all.push_back(std::to_string(pipe[1]));
  std::vector<char*> raw;
  for (auto& argument : all)
    raw.push_back(argument.data());
  raw.push_back(nullptr);

  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(raw.data(), pipe[1], parent);
  const int error = errno;
  ::close(pipe[1]);
  if (pid < 0) {
    ::close(pipe[0]);
    return fail(ErrorCode::kIo,
                fmt::format("cannot start {}: {}", all[0], std::generic_category().message(error)));
  }
  ::setpgid(pid, pid);  // also here, so that the group exists whoever runs first
  ::fcntl(pipe[0], F_SETFL, O_NONBLOCK);
  return ChildProcess(pid, pipe[0]);
}

ChildProcess::~ChildProcess() {
  if (pid_ != 0) {
    signal(SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  close_pipe();
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      ready_fd_(std::exchange(other.ready_fd_, -1)),
      report_(std::move(other.report_)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(ready_fd_, other.ready_fd_);
  std::swap(report_, other.report_);
  return *this;
}

void ChildProcess::close_pipe() {
  if (ready_fd_ >= 0) ::close(std::exchange(ready_fd_, -1));
}

std::optional<std::string> ChildProcess::take_report() {
  while (ready_fd_ >= 0) {
    std::array<char, 4096> buffer{};
    const ssize_t n = ::read(ready_fd_, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return std::nullopt;
    if (n > 0) report_.append(buffer.data(), static_cast<std::size_t>(n));
    const auto newline = report_.find('\n');
    if (newline == std::string::npos && n > 0 && report_.size() < kReportMax) continue;
    close_pipe();
    report_.resize(newline == std::string::npos ? 0 : newline);
    return std::move(report_);
  }
  return std::nullopt;
}

std::optional<int> ChildProcess::poll_exit() {
  int status = 0;
  if (pid_ == 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = 0;
  return status;
}

void ChildProcess::signal(int number) const {
  if (pid_ == 0) return;
  // What it started itself would outlive a kill, so that goes to the whole group.
  if (number != SIGKILL || ::kill(-pid_, number) != 0) ::kill(pid_, number);
}

std::string describe_exit(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int number = WTERMSIG(wait_status);
    return fmt::format("signal {} ({})", number, ::strsignal(number));
  }
  const int code = WEXITSTATUS(wait_status);
  return fmt::format("exit code {}{}", code, code == 127 ? " (the program could not be run)" : "");
}

}  // namespace penstock
