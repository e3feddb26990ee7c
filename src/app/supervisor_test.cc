// Real processes: /bin/sh plays the children.
#include "app/supervisor.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "app/listen_address.h"
#include "app/ready.h"
#include "io/files/files.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

// A child that runs the script with $FD as its readiness descriptor.
ChildSpec child(std::string name, const std::string& script) {
  // sh sees: $0 = name, $1 = --ready-fd, $2 = N.
  return {name, {"/bin/sh", "-c", "FD=$2; " + script, name}, std::chrono::seconds(30)};
}

const std::string kReady = "echo '" + ready_line({}) + "' >&$FD; ";
// Runs until SIGTERM; the shell itself becomes sleep, so nothing is left behind.
const std::string kUntilTerm = "exec sleep 600";

// Becomes ready and runs until SIGTERM, which runs `action`.
std::string on_term(const std::string& action) {
  return "sleep 600 >/dev/null 2>&1 & S=$!; trap '" + action + "' TERM; " + kReady +
         "while :; do wait; done";
}

void send_term_to_self() {
  ::kill(::getpid(), SIGTERM);
}

}  // namespace

TEST_CASE("ready reports cross the pipe unharmed") {
  const ReadyReport report{8080, {{"model nano", "3.1 M parameters, \"quoted\"\n"}}};
  CHECK(parse_ready_line(ready_line(report)) == report);
  const auto failure =
      parse_ready_line(failure_line({ErrorCode::kNotFound, "no such file", "models", {}}));
  REQUIRE(!failure);
  CHECK(failure.error().code == ErrorCode::kNotFound);
  CHECK(failure.error().message == "no such file");
  CHECK(failure.error().field == "models");
  for (const auto* bad :
       {"", "ready", "{}", "[]", R"({"ready":1})", R"({"ready":true})",
        R"({"ready":true,"port":1})", R"({"ready":true,"port":65536,"facts":[]})",
        R"({"ready":true,"port":-1,"facts":[]})", R"({"ready":true,"port":1,"facts":[["a"]]})",
        R"({"ready":true,"port":1,"facts":[["a",1]]})"}) {
    const auto parsed = parse_ready_line(bad);
    REQUIRE_MESSAGE(!parsed, bad);
    CHECK_MESSAGE(parsed.error().code == ErrorCode::kDataLoss, bad);
  }
}

TEST_CASE("ready once all are, and stopped from the last to the first") {
  const auto folder = TemporaryDirectory::make("penstock-supervisor").value();
  const std::string log = folder.path() + "/log";
  const auto logging = [&](const std::string& name) {
    return child(name, on_term("echo " + name + " >> " + log + "; kill $S; exit 0"));
  };
  SupervisorPlan plan{{logging("first"), logging("second")}, {}};
  std::size_t reports = 0;
  plan.on_ready = [&](const std::vector<ReadyReport>& all) -> Status {
    reports = all.size();
    send_term_to_self();
    return {};
  };
  CHECK(supervise(plan) == 0);
  CHECK(reports == 2);
  CHECK(read_file(log, Bytes(100)) == "second\nfirst\n");
}

TEST_CASE("a child's reason for not starting is the service's") {
  const auto line = failure_line({ErrorCode::kNotFound, "no checkpoint at /x", {}, {}});
  SupervisorPlan plan{
      {child("worker", "echo '" + line + "' >&$FD; exit 66"), child("gateway", kUntilTerm)},
      [](const auto&) -> Status { return {}; }};
  const auto result = supervise(plan);
  REQUIRE(!result);
  CHECK(result.error().code == ErrorCode::kNotFound);
  CHECK(result.error().message == "no checkpoint at /x");
}

TEST_CASE("a child that dies before it is ready ends the start") {
  for (const auto& [script, message] :
       {std::pair{"exit 3", "start failed: the worker ended with exit code 3"},
        std::pair{"kill -9 $$", "start failed: the worker ended with signal 9 (Killed)"}}) {
    SupervisorPlan plan{{child("worker", script), child("gateway", kUntilTerm)},
                        [](const auto&) -> Status { return {}; }};
    const auto result = supervise(plan);
    REQUIRE(!result);
    CHECK(result.error().message == message);
    CHECK(result.error().code == ErrorCode::kUnavailable);
  }
  SupervisorPlan missing{{{"worker", {"/no/such/program"}, {}}}, {}};
  const auto result = supervise(missing);
  REQUIRE(!result);
  CHECK(result.error().message.find("could not be run") != std::string::npos);
}

TEST_CASE("a child that dies later is started again") {
  const auto folder = TemporaryDirectory::make("penstock-supervisor").value();
  const std::string lives = folder.path() + "/lives";
  // The third life asks the supervisor to stop; the first two die after they were ready.
  const std::string script = kReady + "echo x >> " + lives + "; if [ $(wc -l < " + lives +
                             ") -ge 3 ]; then kill -TERM $PPID; " + kUntilTerm + "; fi; exit 7";
  int ready = 0;
  SupervisorPlan plan{{child("worker", script)}, [&](const auto&) -> Status {
                        ++ready;
                        return {};
                      }};
  CHECK(supervise(plan) == 0);
  CHECK(ready == 1);
  CHECK(read_file(lives, Bytes(100)) == "x\nx\nx\n");
}

TEST_CASE("a second signal kills what does not want to stop") {
  const auto folder = TemporaryDirectory::make("penstock-supervisor").value();
  // On the first SIGTERM the child asks for the second instead of stopping.
  SupervisorPlan plan{{child("worker", on_term("kill -TERM $PPID"))}, [&](const auto&) -> Status {
                        send_term_to_self();
                        return {};
                      }};
  CHECK(supervise(plan) == 130);
}

TEST_CASE("a child that ignores SIGTERM is killed after its time") {
  auto stubborn = child("worker", on_term(":"));
  stubborn.stop_timeout = std::chrono::milliseconds(1);
  SupervisorPlan plan{{stubborn}, [&](const auto&) -> Status {
                        send_term_to_self();
                        return {};
                      }};
  CHECK(supervise(plan) == error_info(ErrorCode::kDeadlineExceeded).exit_code);
}

TEST_CASE("an error of on_ready stops everything") {
  SupervisorPlan plan{{child("worker", kReady + kUntilTerm)},
                      [&](const auto&) -> Status { return fail(ErrorCode::kIo, "cannot write"); }};
  const auto result = supervise(plan);
  REQUIRE(!result);
  CHECK(result.error().message == "cannot write");
}

TEST_CASE("ports and addresses") {
  CHECK(check_port_free("127.0.0.1", 0));
  CHECK(listen_url("127.0.0.1", 80, false) == "http://127.0.0.1:80");
  CHECK(listen_url("::1", 443, true) == "https://[::1]:443");
  const auto foreign = check_port_free("192.0.2.1", 0);  // TEST-NET-1, never ours
  REQUIRE(!foreign);
  CHECK(foreign.error().code == ErrorCode::kIo);
  CHECK(!check_port_free("not an address", 0));
}

}  // namespace penstock
