// penstock bench control: what the control plane costs on one host, against its two limits.
//
// A worker (EngineServer) and a gateway shard (StreamEngineClient) in this process talk over a Unix
// socket; the engine answers at once. Round trip: submit() to the first output in the sink, one
// request at a time, through the engine's and the shard's threads. Frames: one long request, and an
// engine that steps again as soon as its last frame is on the wire, so that none merge (an engine
// that runs free merges nearly everything, and the number says how the scheduler shares the cores);
// counted where the shard has checked and delivered them. The raw figures move the same encoded
// messages over a socket pair with a length before each, one blocking thread a side: the floor.
//
// Each number is the median of several rounds that alternate between the two, because the machine
// is shared. Concurrency: see bench.h. Source: docs/design/0002-control-plane.md.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>
#include <unordered_map>

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"
#include "io/control/engine_client.h"
#include "io/control/engine_codec.h"
#include "io/control/engine_server.h"
#include "io/control/manual_clock.h"

namespace penstock::bench {
namespace {

using Watch = std::chrono::steady_clock;
constexpr double kRoundTripMaxUs = 120;
constexpr double kFramesMin = 60'000;

double microseconds_since(Watch::time_point start) {
  return std::chrono::duration<double, std::micro>(Watch::now() - start).count();
}

// Lets the engine's thread wait until its last frame is on its way, so that frames never merge.
class Turnstile {
 public:
  void wait() {
    // A short spin: going to sleep and being woken costs more than a frame.
    for (int i = 0; i < 2000 && taken_.load() < made_; ++i) {
    }
    for (auto taken = taken_.load(); taken < made_; taken = taken_.load())
      taken_.wait(taken);
    made_ = taken_.load() + 1;
  }
  void taken() {
    taken_.fetch_add(1);
    taken_.notify_one();
  }

 private:
  std::uint64_t made_ = 0;  // engine's thread
  std::atomic<std::uint64_t> taken_ = 0;
};

// One token a step for each open request, at no cost.
class InstantEngine final : public service::WorkerEngine {
 public:
  explicit InstantEngine(std::shared_ptr<Turnstile> turnstile) : turnstile_(std::move(turnstile)) {}
  const ModelDescription& description() const override { return description_; }
  Status submit(EngineRequest request) override {
    left_.emplace(request.id, request.sampling.max_tokens);
    return {};
  }
  void cancel(RequestId request) override { left_.erase(request); }
  bool has_work() const override { return !left_.empty(); }
  void step(std::vector<EngineOutput>& outputs) override {
    turnstile_->wait();
    for (auto it = left_.begin(); it != left_.end();) {
      EngineOutput output;
      output.request = it->first;
      output.tokens.push_back({7, 0.0F, {}});
      const bool last = --it->second == 0;
      if (last) output.finish = FinishReason::kLength;
      outputs.push_back(std::move(output));
      it = last ? left_.erase(it) : std::next(it);
    }
  }
  EngineLoad load() const override { return {}; }

 private:
  ModelDescription description_{"instant", "", 1U << 20, 1000, true};
  std::shared_ptr<Turnstile> turnstile_;
  std::unordered_map<RequestId, std::uint32_t> left_;
};

class Plane {
 public:
  static Result<std::unique_ptr<Plane>> open(const std::string& folder) {
    auto plane = std::unique_ptr<Plane>(new Plane);
    control::EngineServerOptions options;
    options.listen = "unix:" + folder + "/bench.sock";
    options.name = "bench";
    options.on_frame = [turnstile = plane->turnstile_] { turnstile->taken(); };
    std::vector<std::unique_ptr<service::WorkerEngine>> engines;
    engines.push_back(std::make_unique<InstantEngine>(plane->turnstile_));
    TRY(plane->server_, control::EngineServer::start(options, std::move(engines)));
    {
      control::EngineClientOptions client;
      client.workers = {options.listen};
      plane->shards_.push_back(std::make_unique<control::StreamEngineClient>(
          plane->clock_, plane->clock_.poller(), client));
      plane->clock_.run_until([&] { return plane->shards_.back()->workers()[0].connected; });
    }
    return plane;
  }

  // Microseconds of each submit until its first output.
  Result<std::vector<double>> round_trips(int rounds) {
    std::vector<double> times;
    for (int i = 0; i < rounds; ++i) {
      bool answered = false;
      const auto start = Watch::now();
      TRY_STATUS(
          shards_[0]->submit(WorkerId(1), request(1), [&](EngineOutput) { answered = true; }));
      clock_.run_until([&] { return answered; });
      times.push_back(microseconds_since(start));
    }
    return times;
  }

  // Frames per second that reach the sinks of all shards together.
  Result<double> frames_per_second(std::uint32_t steps) {
    std::size_t over = 0;
    bool failed = false;
    const std::uint64_t before = frames();
    const auto start = Watch::now();
    for (const auto& shard : shards_) {
      TRY_STATUS(shard->submit(WorkerId(1), request(steps), [&](EngineOutput output) {
        over += output.finish.has_value() ? 1 : 0;
        failed = failed || output.error.has_value();
      }));
    }
    clock_.run_until([&] { return over == shards_.size(); });
    if (failed) return fail(ErrorCode::kInternal, "the bench's worker was lost");
    const double seconds = microseconds_since(start) / 1e6;
    return static_cast<double>(frames() - before) / seconds;
  }

 private:
  Plane() = default;
  std::uint64_t frames() const {
    std::uint64_t sum = 0;
    for (const auto& shard : shards_)
      sum += shard->counters().frames;
    return sum;
  }
  EngineRequest request(std::uint32_t max_tokens) {
    EngineRequest r;
    r.id = RequestId(++last_id_);
    r.model = "instant";
    r.prompt = prompt_;
    r.sampling.max_tokens = max_tokens;
    return r;
  }

  control::ManualClock clock_;
  std::shared_ptr<Turnstile> turnstile_ = std::make_shared<Turnstile>();
  std::unique_ptr<control::EngineServer> server_;
  std::vector<std::unique_ptr<control::StreamEngineClient>> shards_;
  std::uint64_t last_id_ = 0;
  TokenIds prompt_ = std::make_shared<const std::vector<TokenId>>(100, TokenId{500});
};

bool send_all(int fd, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t n = ::send(fd, data, size, MSG_NOSIGNAL);
    if (n <= 0) return false;
    data += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

bool receive_all(int fd, char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t n = ::recv(fd, data, size, 0);
    if (n <= 0) return false;
    data += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

bool send_frame(int fd, const google::protobuf::MessageLite& frame, std::string& buffer) {
  const auto size = static_cast<std::uint32_t>(frame.ByteSizeLong());
  buffer.assign(reinterpret_cast<const char*>(&size), sizeof size);
  frame.AppendToString(&buffer);
  return send_all(fd, buffer.data(), buffer.size());
}

bool receive_frame(int fd, google::protobuf::MessageLite& frame, std::string& buffer) {
  std::uint32_t size = 0;
  if (!receive_all(fd, reinterpret_cast<char*>(&size), sizeof size)) return false;
  buffer.resize(size);
  return receive_all(fd, buffer.data(), size) && frame.ParseFromString(buffer);
}

// The same messages over a framed socket pair; the peer thread answers or sends on its own.
class RawPair {
 public:
  static Result<std::unique_ptr<RawPair>> open() {
    auto pair = std::unique_ptr<RawPair>(new RawPair);
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair->fds_) != 0) {
      return fail(ErrorCode::kIo, "cannot make a socket pair");
    }
    return pair;
  }
  ~RawPair() {
    ::close(fds_[0]);
    ::close(fds_[1]);
  }
  RawPair(const RawPair&) = delete;
  RawPair& operator=(const RawPair&) = delete;

  std::vector<double> round_trips(int rounds) {
    std::thread peer([&] {
      std::string buffer;
      control::wire::GatewayFrame in;
      for (int i = 0; i < rounds && receive_frame(fds_[1], in, buffer); ++i) {
        if (!send_frame(fds_[1], answer(1), buffer)) return;
      }
    });
    std::vector<double> times;
    std::string buffer;
    control::wire::WorkerFrame in;
    for (int i = 0; i < rounds; ++i) {
      const auto start = Watch::now();
      if (!send_frame(fds_[0], submit(), buffer) || !receive_frame(fds_[0], in, buffer)) break;
      times.push_back(microseconds_since(start));
    }
    peer.join();
    return times;
  }

  double frames_per_second(std::uint32_t frames) {
    const auto start = Watch::now();
    std::thread peer([&] {
      std::string buffer;
      for (std::uint32_t i = 0; i < frames; ++i) {
        if (!send_frame(fds_[1], answer(i), buffer)) return;
      }
    });
    std::string buffer;
    control::wire::WorkerFrame in;
    std::uint32_t received = 0;
    while (received < frames && receive_frame(fds_[0], in, buffer))
      ++received;
    peer.join();
    return received / (microseconds_since(start) / 1e6);
  }

 private:
  RawPair() = default;
  static control::wire::GatewayFrame submit() {
    EngineRequest r;
    r.model = "instant";
    r.prompt = std::make_shared<const std::vector<TokenId>>(100, TokenId{500});
    r.sampling.max_tokens = 1;
    control::wire::GatewayFrame frame;
    control::encode(r, *frame.add_submits());
    return frame;
  }
  static control::wire::WorkerFrame answer(std::uint64_t step) {
    control::wire::WorkerFrame frame;
    frame.set_step(step);
    EngineOutput output;
    output.tokens.push_back({7, 0.0F, {}});
    control::append(output, false, *frame.add_outputs());
    control::encode(EngineLoad{}, 0, *frame.add_loads());
    return frame;
  }
  int fds_[2] = {-1, -1};
};

Result<std::vector<Figure>> measure(const std::string& folder, bool quick) {
  TRY(const auto plane, Plane::open(folder));
  TRY(const auto raw, RawPair::open());
  const int rounds = quick ? 3 : 9;
  const int trips = quick ? 500 : 3000;
  const std::uint32_t steps = quick ? 48'000 : 160'000;
  TRY(const auto warm, plane->round_trips(200));
  std::vector<double> trip;
  std::vector<double> raw_trip;
  std::vector<double> frames;
  std::vector<double> raw_frames;
  for (int round = 0; round < rounds; ++round) {
    TRY(const auto times, plane->round_trips(trips));
    trip.push_back(median(times));
    raw_trip.push_back(median(raw->round_trips(trips)));
    TRY(const double rate, plane->frames_per_second(steps));
    frames.push_back(rate);
    raw_frames.push_back(raw->frames_per_second(steps));
  }
  const double trip_us = median(trip);
  const double raw_us = median(raw_trip);
  std::vector<Figure> figures;
  figures.push_back(at_most("submit to first output, p50", trip_us, "us", kRoundTripMaxUs));
  figures.push_back(at_least("frames one way", median(frames), "1/s", kFramesMin));
  // For the decision record: how far the plain socket is ahead. Aim: within a factor of ten.
  figures.push_back({"submit to first output, p50, against raw frames",
                     trip_us,
                     "us",
                     "raw framed socket",
                     raw_us,
                     raw_us / trip_us,
                     0.1,
                     {}});
  figures.push_back(more_is_better("frames one way, against raw frames", median(frames), "1/s",
                                   "raw framed socket", median(raw_frames), 0.1));
  return figures;
}

}  // namespace

Result<std::vector<Figure>> run_control(const Options& options) {
  std::string folder = (std::filesystem::temp_directory_path() / "penstockXXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) {
    return fail(ErrorCode::kIo, "cannot make a temporary folder for the socket");
  }
  auto figures = measure(folder, options.quick);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return figures;
}

}  // namespace penstock::bench
