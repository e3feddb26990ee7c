#include "pd_rig.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "io/files/machine.h"

namespace penstock::bench {
namespace {

using namespace std::chrono_literals;

constexpr Duration kConnectMax = 30s;
constexpr Duration kRequestMax = 5min;

// Between fork and exec: only calls that are safe there.
[[noreturn]] void become(char* const* arguments, int ready, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::fcntl(ready, F_SETFD, 0);
  ::execv(arguments[0], arguments);
  ::_exit(127);
}

std::string read_line(int fd) {
  std::string line;
  char c = 0;
  while (true) {
    const ssize_t n = ::read(fd, &c, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || c == '\n') return line;
    line += c;
  }
}

}  // namespace

Result<Child> Child::start(std::vector<std::string> arguments) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return fail(ErrorCode::kIo, "cannot make a pipe");
  arguments.insert(arguments.begin(), executable_path());
  arguments.emplace_back("--ready-fd");
  arguments.push_back(fmt::to_string(pipe[1]));
  std::vector<char*> raw;
  for (std::string& argument : arguments)
    raw.push_back(argument.data());
  raw.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(raw.data(), pipe[1], parent);
  ::close(pipe[1]);
  if (pid < 0) {
    ::close(pipe[0]);
    return fail(ErrorCode::kIo, "cannot start a process");
  }
  Child child(pid, read_line(pipe[0]));
  ::close(pipe[0]);
  if (!child.report_.starts_with("{\"ready\":true")) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("penstock {} did not start: {}", arguments[1], child.report_));
  }
  return child;
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), report_(std::move(other.report_)) {}

Child& Child::operator=(Child&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(report_, other.report_);
  return *this;
}

Child::~Child() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<std::unique_ptr<ScratchFolder>> ScratchFolder::make() {
  std::string path = (std::filesystem::temp_directory_path() / "penstock-bench-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) {
    return fail(ErrorCode::kIo, "no temporary folder can be made");
  }
  std::filesystem::create_directory(path + "/run");
  return std::unique_ptr<ScratchFolder>(new ScratchFolder(std::move(path)));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Shard::Shard(ShardClock& clock, control::EngineClientOptions options)
    : clock_(clock),
      client_(clock, clock.poller(), std::move(options)),
      encoder_(clock, pool_, std::array<std::uint8_t, 32>{}),
      context_{clock, client_, encoder_, observer_, catalog_, {}, Rng(11), {}, {}, {}} {}

Result<std::unique_ptr<Shard>> Shard::open(ShardClock& clock, std::vector<std::string> workers) {
  control::EngineClientOptions options;
  options.workers = std::move(workers);
  options.gateway_epoch = Epoch(static_cast<std::uint64_t>(clock.now().time_since_epoch().count()));
  auto shard = std::unique_ptr<Shard>(new Shard(clock, std::move(options)));
  const auto connected = [&] {
    return std::ranges::all_of(shard->client_.workers(),
                               [](const WorkerView& worker) { return worker.connected; });
  };
  if (!clock.run_until(connected, kConnectMax)) {
    return fail(ErrorCode::kUnavailable, "a worker of the bench can't be reached");
  }
  shard->model_ = shard->client_.workers()[0].description.models[0].name;
  return shard;
}

Shard::~Shard() {
  for (gateway::EngineRun* const run : std::set(runs_))
    run->abandon({ErrorCode::kCancelled, "the bench is over", {}, {}});
  clock_.run_until([&] { return running() == 0; }, 1s);
}

Task<void> Shard::run(Ask ask) {
  Status status = co_await serve(std::move(ask));
  if (!status && !error_) error_ = std::move(status).error();
}

Task<Status> Shard::serve(Ask ask) {
  gateway::EngineRun run(context_, clock_.now() + kRequestMax);
  runs_.insert(&run);
  Status status = co_await follow(run, std::move(ask));
  runs_.erase(&run);
  co_return status;
}

Task<Status> Shard::follow(gateway::EngineRun& run, Ask ask) {
  const auto tokens = static_cast<std::uint32_t>(ask.prompt->size());
  gateway::Placement placement;
  if (ask.on) {
    placement.decode = {*ask.on, 0};
    placement.fresh = tokens;
  } else {
    CO_TRY(placement, co_await run.place({model_, tokens, 0}));
  }
  EngineRequest request;
  request.model = model_;
  request.prompt = std::move(ask.prompt);
  request.sampling.max_tokens = ask.max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.temperature = 0;
  CO_TRY_STATUS(run.submit(placement, std::move(request)));
  while (true) {
    CO_TRY(const std::optional<EngineOutput> output, co_await run.next(clock_.now() + 10s));
    if (!output) continue;
    if (!output->tokens.empty() && !ask.on_tokens(output->tokens.size())) break;
    if (output->finish) break;
  }
  co_return Status{};
}

Status Shard::finish(Duration limit) {
  const bool done = clock_.run_until([&] { return running() == 0; }, limit);
  if (error_) return std::unexpected(*error_);
  if (!done) return fail(ErrorCode::kDeadlineExceeded, "a request of the bench does not end");
  return {};
}

TokenIds random_prompt(Rng& rng, std::size_t count, std::uint32_t vocabulary) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens)
    token = static_cast<TokenId>(rng.below(vocabulary));
  return std::make_shared<const std::vector<TokenId>>(std::move(tokens));
}

double median_of(std::vector<double> values) {
  return quantile_of(std::move(values), 0.5);
}

double quantile_of(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(std::ceil(last * q))];
}

}  // namespace penstock::bench
