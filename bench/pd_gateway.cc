// `penstock bench pd`, gateway: what a frame of tokens costs.
//
// A process of its own plays the worker: its engine gives each of 64 requests one token every 2 ms,
// one frame a step. Frames: a gateway shard in this process takes them from its stream to 64
// EngineRuns and a coroutine behind each; the CPU time of all of this process, reading thread
// included, by frames. Tokens: the `penstock gateway` process with 64 clients on HTTP streams; the
// CPU time of all its threads by events written: text, JSON, HTTP and a system call each.
//
// The limit of 50 us is held against both: a worker's frame carries the tokens of all requests, a
// client's frame the token of one.
//
// CPU times are the kernel's, so that a busy machine disturbs them little. Medians of rounds.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "fork.h"
#include "gateway_rig.h"
#include "io/control/engine_server.h"
#include "pd.h"
#include "pd_rig.h"

namespace penstock::bench {
namespace {

using namespace std::chrono_literals;
using Steady = std::chrono::steady_clock;

constexpr std::size_t kRequests = 64;
constexpr double kFrameMaxUs = 50;
constexpr double kTokenMaxUs = 50;
constexpr auto kBeat = 2ms;

// One token for each request, on the beat.
class Metronome final : public service::WorkerEngine {
 public:
  Metronome(std::string model_dir, std::vector<TokenId> text) : text_(std::move(text)) {
    description_.name = "nano";
    description_.checkpoint_dir = std::move(model_dir);
    description_.context_length = 1U << 20;
    description_.vocab_size = 2048;
  }
  const ModelDescription& description() const override { return description_; }
  Status submit(EngineRequest request) override {
    open_.insert(request.id);
    return {};
  }
  void cancel(RequestId request) override { open_.erase(request); }
  bool has_work() const override { return !open_.empty(); }
  void step(std::vector<EngineOutput>& outputs) override {
    next_ = std::max(next_ + kBeat, Steady::now());
    std::this_thread::sleep_until(next_);
    const TokenId token = text_[++step_ % text_.size()];
    for (const RequestId request : open_) {
      EngineOutput output;
      output.request = request;
      output.tokens.push_back({token, 0.0F, {}});
      outputs.push_back(std::move(output));
    }
  }
  EngineLoad load() const override {
    EngineLoad load;
    load.step = step_;
    load.running = static_cast<std::uint32_t>(open_.size());
    return load;
  }

 private:
  ModelDescription description_;
  std::vector<TokenId> text_;
  std::set<RequestId> open_;
  std::uint64_t step_ = 0;
  Steady::time_point next_{};
};

// In a process of its own: a metronome behind a worker's socket.
void serve(const std::string& socket, const std::string& model_dir, std::vector<TokenId> text,
           int report) {
  control::EngineServerOptions options;
  options.listen = "unix:" + socket;
  options.name = "metronome";
  std::vector<std::unique_ptr<service::WorkerEngine>> engines;
  engines.push_back(std::make_unique<Metronome>(model_dir, std::move(text)));
  const auto server = control::EngineServer::start(std::move(options), std::move(engines));
  if (!server) return;
  tell(report, socket);
  while (true)
    ::pause();
}

// Microseconds of CPU for each frame of `kRequests` tokens, up to the coroutines.
Result<double> frame_cost(const std::string& socket, Duration window) {
  ShardClock clock;
  TRY(const auto shard, Shard::open(clock, {"unix:" + socket}));
  std::size_t started = 0;
  const auto prompt = std::make_shared<const std::vector<TokenId>>(16, TokenId{500});
  for (std::size_t i = 0; i < kRequests; ++i) {
    shard->start({prompt, 100'000, WorkerId(1), [&, first = true](std::size_t) mutable {
                    started += std::exchange(first, false) ? 1 : 0;
                    return true;
                  }});
  }
  const auto& counters = shard->client().counters();
  const auto run_for = [&](Duration time) {
    clock.run_until([&] { return shard->error().has_value(); }, time);
  };
  if (!clock.run_until([&] { return started == kRequests; }, 30s)) {
    return fail(ErrorCode::kDeadlineExceeded, "the bench's streams do not start");
  }
  run_for(200ms);
  const std::uint64_t frames = counters.frames;
  const std::uint64_t outputs = counters.outputs;
  const double before = cpu_of(::getpid());
  run_for(window);
  const double used = cpu_of(::getpid()) - before;
  if (shard->error()) return std::unexpected(*shard->error());
  // Heartbeats are frames without outputs.
  const auto full = static_cast<double>(counters.outputs - outputs) / kRequests;
  if (full < 0.8 * static_cast<double>(counters.frames - frames)) {
    return fail(ErrorCode::kInternal, "frames do not carry the tokens of all requests");
  }
  return used / full / 1e3;
}

// Streams of a gateway, read and counted.
class HttpStreams {
 public:
  static Result<std::unique_ptr<HttpStreams>> open(std::uint16_t port) {
    auto streams = std::unique_ptr<HttpStreams>(new HttpStreams);
    const std::string body = R"({"model":"nano","stream":true,"max_tokens":500000,)"
                             R"("messages":[{"role":"user","content":"go on"}]})";
    for (std::size_t i = 0; i < kRequests; ++i) {
      TRY(auto wire, HttpWire::open(port));
      TRY_STATUS(wire.send(chat_post(body)));
      streams->polled_.push_back({wire.fd(), POLLIN, 0});
      streams->wires_.push_back(std::move(wire));
    }
    streams->last_.assign(kRequests, 0);
    return streams;
  }
  HttpStreams(const HttpStreams&) = delete;
  HttpStreams& operator=(const HttpStreams&) = delete;

  // Reads for that long; how many events came.
  Result<std::size_t> read_for(Duration time) {
    const auto end = Steady::now() + time;
    std::size_t events = 0;
    std::array<char, 1 << 14> buffer{};
    while (Steady::now() < end) {
      ::poll(polled_.data(), polled_.size(), 10);
      for (std::size_t i = 0; i < polled_.size(); ++i) {
        if ((polled_[i].revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
        const ssize_t n = ::recv(polled_[i].fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
        if (n <= 0) return fail(ErrorCode::kIo, "the gateway ended a stream of the bench");
        // An event ends with an empty line; nothing else in a stream has two newlines in a row.
        for (ssize_t c = 0; c < n; ++c) {
          const char now = buffer[static_cast<std::size_t>(c)];
          events += now == '\n' && last_[i] == '\n' ? 1 : 0;
          last_[i] = now;
        }
      }
    }
    return events;
  }

 private:
  HttpStreams() = default;
  std::vector<HttpWire> wires_;
  std::vector<pollfd> polled_;
  std::vector<char> last_;  // byte read
};

// Microseconds of the gateway's CPU for each event, and events per second of one stream.
struct TokenCost {
  double us = 0;
  double rate = 0;
};
Result<TokenCost> token_cost(const Child& gateway, Duration window) {
  TRY(const std::uint16_t port, port_of(gateway.report()));
  TRY(const auto streams, HttpStreams::open(port));
  TRY(const std::size_t ignored, streams->read_for(500ms));
  const double before = cpu_of(gateway.pid());
  TRY(const std::size_t events, streams->read_for(window));
  const double used = cpu_of(gateway.pid()) - before;
  if (ignored == 0 || events == 0) return fail(ErrorCode::kInternal, "the gateway sends nothing");
  const double count = static_cast<double>(events);
  return TokenCost{used / count / 1e3,
                   count / kRequests / std::chrono::duration<double>(window).count()};
}

}  // namespace

Result<std::vector<Figure>> pd_gateway_figures(const Options& options) {
  TRY(const auto folder, ScratchFolder::make());
  const std::string socket = folder->path() + "/run/metronome.sock";
  TRY(auto text, sentence_tokens(options.model_dir));
  const Fork worker([&](int report) { serve(socket, options.model_dir, std::move(text), report); });
  if (worker.line().empty())
    return fail(ErrorCode::kUnavailable, "the bench's worker did not start");
  TRY(const Child gateway,
      Child::start({"gateway", "--port", "0", "--data-dir", folder->path(), "--model",
                    "nano=" + options.model_dir, "--worker", "metronome=unix:" + socket,
                    "--kv-cache", "off", "--gateway-threads", "1", "--access-log",
                    folder->path() + "/access.log", "--log-level", "error"}));
  const int rounds = options.quick ? 3 : 7;
  const Duration window = options.quick ? 1500ms : 2000ms;
  std::vector<double> frame;
  std::vector<double> token;
  for (int i = 0; i < rounds; ++i) {
    TRY(const double frame_us, frame_cost(socket, window));
    TRY(const TokenCost cost, token_cost(gateway, window));
    frame.push_back(frame_us);
    token.push_back(cost.us);
    fmt::print(stderr, "  frame {:.1f} us; HTTP token {:.2f} us, each stream {:.0f}/s\n", frame_us,
               cost.us, cost.rate);
  }
  return std::vector<Figure>{at_most("gateway, a frame with a token for each of 64 requests",
                                     median_of(frame), "us", kFrameMaxUs),
                             at_most("gateway, a token of one of 64 streams, written as HTTP",
                                     median_of(token), "us", kTokenMaxUs)};
}

}  // namespace penstock::bench
