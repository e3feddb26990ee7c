#include "app/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>
#include <system_error>

#include "app/child_process.h"
#include "app/restart_policy.h"
#include "app/values.h"
#include "base/check.h"
#include "io/telemetry/log.h"

namespace penstock {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;
constexpr Duration kPatience = std::chrono::seconds(10);  // between "still waiting" lines
constexpr int kKilledExitCode = 130;

SteadyTime now() {
  return std::chrono::steady_clock::now();
}

// The stop and child signals as a file descriptor, blocked for the object's life.
class Signals {
 public:
  Signals() {
    // A reader of our log that goes away must not end the service.
    ::signal(SIGPIPE, SIG_IGN);
    sigset_t wanted;
    ::sigemptyset(&wanted);
    for (const int number : {SIGTERM, SIGINT, SIGCHLD})
      ::sigaddset(&wanted, number);
    // Under nohup a hang-up is ignored, and stays so.
    struct sigaction hang_up{};
    if (::sigaction(SIGHUP, nullptr, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN)
      ::sigaddset(&wanted, SIGHUP);
    ::sigprocmask(SIG_BLOCK, &wanted, &before_);
    fd_ = ::signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
  }
  ~Signals() {
    if (fd_ >= 0) ::close(fd_);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  int fd() const { return fd_; }

  // The next signal that came, or 0.
  int take() const {
    signalfd_siginfo info{};
    return ::read(fd_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  int fd_ = -1;
  sigset_t before_{};
};

struct Child {
  const ChildSpec* spec = nullptr;
  std::optional<ChildProcess> process;
  SteadyTime started;
  std::optional<ReadyReport> report;
  std::optional<SteadyTime> restart_at;
  RestartPolicy policy;
};

class Supervisor {
 public:
  explicit Supervisor(const SupervisorPlan& plan) : plan_(plan) {
    ENSURE(!plan.children.empty());
    for (const auto& spec : plan.children)
      children_.emplace_back().spec = &spec;
  }

  Result<int> run() {
    if (signals_.fd() < 0)
      return fail(ErrorCode::kIo, fmt::format("cannot receive signals: {}",
                                              std::generic_category().message(errno)));
    patience_ends_ = now() + kPatience;
    start(children_.front());
    while (!done()) {
      wait();
      take_signals();
      take_reports();
      take_exits();
      act_on_time();
    }
    if (failure_) return std::unexpected(*failure_);
    if (overdue_) return error_info(ErrorCode::kDeadlineExceeded).exit_code;
    return killed_ ? kKilledExitCode : 0;
  }

 private:
  bool done() const {
    return stopping_ &&
           std::ranges::none_of(children_, [](const Child& c) { return c.process.has_value(); });
  }

  void start(Child& child) {
    child.restart_at.reset();
    child.report.reset();
    child.started = now();
    auto process = ChildProcess::spawn(child.spec->arguments);
    if (process) {
      child.process.emplace(std::move(*process));
      return;
    }
    handle_loss(child, process.error());
  }

  void wait() {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
    std::optional<SteadyTime> wake;
    const auto sooner = [&](SteadyTime when) { wake = wake ? std::min(*wake, when) : when; };
    for (const auto& child : children_) {
      if (child.process && child.process->ready_fd() >= 0)
        fds.push_back({child.process->ready_fd(), POLLIN, 0});
      if (child.restart_at) sooner(*child.restart_at);
    }
    if (!ready_ && !stopping_) sooner(patience_ends_);
    if (kill_at_) sooner(*kill_at_);
    int timeout = -1;
    if (wake) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*wake - now());
      timeout = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
    }
    ::poll(fds.data(), fds.size(), timeout);
  }

  void take_signals() {
    for (int number = signals_.take(); number != 0; number = signals_.take()) {
      if (number == SIGCHLD) continue;
      if (!stopping_) {
        log_info("stopping on {}; running requests may finish, a second signal stops at once",
                 number == SIGINT    ? "SIGINT"
                 : number == SIGTERM ? "SIGTERM"
                                     : "SIGHUP");
        stop();
      } else if (!killed_) {
        log_warning("second signal: killing everything now");
        killed_ = true;
        for (const auto& child : children_) {
          if (child.process) child.process->signal(SIGKILL);
        }
      }
    }
  }

  void take_reports() {
    for (auto& child : children_) {
      if (child.process) take_report(child);
    }
    if (ready_ || stopping_) return;
    std::vector<ReadyReport> reports;
    for (auto& child : children_) {
      if (!child.report) {
        if (!child.process) start(child);
        return;
      }
      reports.push_back(*child.report);
    }
    ready_ = true;
    if (auto status = plan_.on_ready(reports); !status) {
      failure_ = std::move(status).error();
      stop();
    }
  }

  void take_report(Child& child) {
    const auto line = child.process->take_report();
    if (!line || line->empty()) return;  // an end of file is followed by the exit
    auto report = parse_ready_line(*line);
    if (report) {
      child.report = std::move(*report);
      if (ready_) log_info("{} is ready again", child.spec->name);
    } else if (!ready_ && !stopping_) {
      failure_ = std::move(report).error();
      stop();
    } else {
      log_error("{}: {}", child.spec->name, report.error().message);
    }
  }

  void take_exits() {
    for (auto& child : children_) {
      if (!child.process) continue;
      const auto status = child.process->poll_exit();
      if (!status) continue;
      take_report(child);  // what it wrote last
      child.process.reset();
      if (stopping_) {
        if (*status != 0 && !killed_ && !failure_)
          log_warning("{} ended with {}", child.spec->name, describe_exit(*status));
        stop_next();
      } else {
        handle_loss(child, Error{ErrorCode::kUnavailable,
                                 fmt::format("the {} ended with {}", child.spec->name,
                                             describe_exit(*status)),
                                 {},
                                 {}});
      }
    }
  }

  // A child is gone though nobody asked for it.
  void handle_loss(Child& child, const Error& error) {
    if (!ready_) {
      if (!failure_) failure_ = Error(error).within("start failed");
      stop();
      return;
    }
    const Duration delay = child.policy.delay_after(now() - child.started);
    child.restart_at = now() + delay;
    log_error("{}; restarting it in {}", error.message, format_duration(delay));
  }

  void act_on_time() {
    const auto time = now();
    for (auto& child : children_) {
      if (!stopping_ && child.restart_at && time >= *child.restart_at) start(child);
    }
    if (kill_at_ && time >= *kill_at_) {
      auto& child = children_[stop_index_];
      log_warning("{} did not stop within {}; killing it", child.spec->name,
                  format_duration(child.spec->stop_timeout));
      kill_at_.reset();
      overdue_ = true;
      if (child.process) child.process->signal(SIGKILL);
    }
    if (!ready_ && !stopping_ && time >= patience_ends_) {
      for (const auto& child : children_) {
        if (child.process && !child.report) log_info("still waiting for the {}", child.spec->name);
      }
      patience_ends_ = time + kPatience;
    }
  }

  void stop() {
    if (stopping_) return;
    stopping_ = true;
    stop_index_ = children_.size();
    for (auto& child : children_)
      child.restart_at.reset();
    stop_next();
  }

  // Goes on to the next child to stop, once the one before it is gone.
  void stop_next() {
    if (stop_index_ < children_.size() && children_[stop_index_].process) return;
    kill_at_.reset();
    while (stop_index_ > 0) {
      auto& child = children_[--stop_index_];
      if (!child.process) continue;
      child.process->signal(SIGTERM);
      kill_at_ = now() + child.spec->stop_timeout;
      return;
    }
  }

  const SupervisorPlan& plan_;
  Signals signals_;
  std::vector<Child> children_;
  SteadyTime patience_ends_;
  bool ready_ = false;  // was ready once
  bool stopping_ = false;
  bool killed_ = false;
  bool overdue_ = false;        // a child had to be killed at the end
  std::size_t stop_index_ = 0;  // the child that is being stopped
  std::optional<SteadyTime> kill_at_;
  std::optional<Error> failure_;
};

}  // namespace

Result<int> supervise(const SupervisorPlan& plan) {
  return Supervisor(plan).run();
}

}  // namespace penstock
