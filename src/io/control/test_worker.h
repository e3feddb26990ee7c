// Helpers of this folder's tests: a scripted engine, a socket folder, a worker and a gateway shard.
//
// ScriptedEngine gives every choice of every request one token a step: token i of choice c is
// (first prompt token + i + 1000 c) mod vocabulary, until max_tokens. With `permits` set, a step
// waits for a permit, which makes an engine slow or hung at will. It claims one layer of two
// experts, of which every request picks the first once, and takes maps of two ranks.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/control/engine_client.h"
#include "io/control/engine_server.h"
#include "io/control/manual_clock.h"

namespace penstock::control::testing {

inline constexpr std::uint32_t kVocab = 5000;

// What a test sees of an engine that runs on another thread.
class EngineProbe {
 public:
  void permit(std::size_t steps) {
    const std::lock_guard lock(mutex_);
    permits_ += steps;
    changed_.notify_all();
  }
  // Waits until the engine has ended `n` requests by cancel.
  void wait_cancelled(std::size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return cancelled_ >= n; });
  }
  void wait_submitted(std::size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return submitted_ >= n; });
  }
  void wait_idle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_ == 0 && submitted_ > 0; });
  }
  void wait_stepping() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stepping_; });
  }

 private:
  friend class ScriptedEngine;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t permits_ = 0;
  std::size_t submitted_ = 0;
  std::size_t cancelled_ = 0;
  std::size_t open_ = 0;
  bool stepping_ = false;
};

class ScriptedEngine final : public service::WorkerEngine {
 public:
  enum class Pace : std::uint8_t { kFree, kByPermit };

  ScriptedEngine(std::string model, std::shared_ptr<EngineProbe> probe, Pace pace = Pace::kFree,
                 std::string weights = {})
      : description_{std::move(model), "", 1U << 20, kVocab, true},
        probe_(std::move(probe)),
        pace_(pace) {
    description_.kv.weights_digest = std::move(weights);
  }

  const ModelDescription& description() const override { return description_; }
  Status submit(EngineRequest request) override {
    if (request.prompt->empty()) {
      return fail(ErrorCode::kInvalidArgument, "the prompt is empty", "messages");
    }
    open_.emplace(request.id.value, Open{std::move(request), 0});
    ++submitted_;
    note([&](EngineProbe& p) { ++p.submitted_; });
    return {};
  }
  void cancel(RequestId request) override {
    const std::size_t erased = open_.erase(request.value);
    note([&](EngineProbe& p) { p.cancelled_ += erased; });
  }
  bool has_work() const override { return !open_.empty(); }
  void step(std::vector<EngineOutput>& outputs) override {
    wait_for_permit();
    for (auto it = open_.begin(); it != open_.end();) {
      Open& open = it->second;
      const SamplingParams& sampling = open.request.sampling;
      const bool last = open.done + 1 == sampling.max_tokens;
      for (std::uint32_t choice = 0; choice < sampling.choices; ++choice) {
        EngineOutput output;
        output.request = open.request.id;
        output.choice = choice;
        const TokenId token = (open.request.prompt->front() + open.done + 1000 * choice) % kVocab;
        output.tokens.push_back({token, 0.0F, {}});
        if (sampling.top_logprobs >= 0) {
          output.tokens[0].logprob = -0.5F;
          for (std::int32_t i = 0; i < sampling.top_logprobs; ++i) {
            output.tokens[0].top.push_back({static_cast<TokenId>(i), -1.0F - float(i)});
          }
        }
        if (open.done == 0) output.cached_tokens = 1;
        if (last) output.finish = FinishReason::kLength;
        outputs.push_back(std::move(output));
      }
      ++open.done;
      it = last ? open_.erase(it) : std::next(it);
    }
    note([](EngineProbe&) {});
  }
  EngineLoad load() const override {
    EngineLoad load;
    load.running = static_cast<std::uint32_t>(open_.size());
    load.kv_tokens_used = Tokens(static_cast<std::int64_t>(open_.size()));
    load.kv_tokens_total = Tokens(4096);
    return load;
  }
  ExpertUse expert_use() const override { return {map_.version, 0, {submitted_}, {submitted_}}; }
  ExpertReport expert_report() const override {
    ExpertReport report{0, 1, 2, {submitted_, 0}, map_, {}};
    if (map_.version != 0) report.rank_picks = {0, submitted_};
    return report;
  }
  Status set_expert_map(const ExpertMap& map) override {
    if (std::ranges::find(map.slots, 0) == map.slots.end())
      return fail(ErrorCode::kInvalidArgument, "expert 0 is nowhere");
    map_ = map;
    return {};
  }

 private:
  struct Open {
    EngineRequest request;
    std::uint32_t done;
  };

  template <typename Change>
  void note(Change change) {
    const std::lock_guard lock(probe_->mutex_);
    change(*probe_);
    probe_->open_ = open_.size();
    probe_->changed_.notify_all();
  }
  void wait_for_permit() {
    if (pace_ == Pace::kFree) return;
    std::unique_lock lock(probe_->mutex_);
    probe_->stepping_ = true;
    probe_->changed_.notify_all();
    probe_->changed_.wait(lock, [&] { return probe_->permits_ > 0; });
    --probe_->permits_;
    probe_->stepping_ = false;
  }

  ModelDescription description_;
  std::shared_ptr<EngineProbe> probe_;
  Pace pace_;
  std::map<std::uint64_t, Open> open_;
  // One layer of two experts; all go to expert 0.
  std::uint64_t submitted_ = 0;
  ExpertMap map_;
};

// A folder of its own for the socket, removed at the end.
class SocketFolder {
 public:
  SocketFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "penstockXXXXXX").string();
    if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~SocketFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;
  std::string path() const { return path_; }
  std::string address() const { return "unix:" + path_ + "/worker.sock"; }

 private:
  std::string path_;
};

inline EngineRequest request(std::uint64_t id, TokenId first, std::uint32_t max_tokens,
                             std::uint32_t choices = 1, std::string model = "alpha") {
  EngineRequest r;
  r.id = RequestId(id);
  r.model = std::move(model);
  r.prompt = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{first, 1, 2});
  r.sampling.max_tokens = max_tokens;
  r.sampling.choices = choices;
  return r;
}

// Collects what a sink gets.
struct Answer {
  std::map<std::uint32_t, std::vector<OutputToken>> tokens;
  std::map<std::uint32_t, FinishReason> finishes;
  std::optional<Error> error;
  std::size_t outputs = 0;
  std::uint32_t cached_tokens = 0;

  EngineClient::Sink sink() {
    return [this](EngineOutput output) {
      ++outputs;
      cached_tokens += output.cached_tokens;
      auto& list = tokens[output.choice];
      list.insert(list.end(), output.tokens.begin(), output.tokens.end());
      if (output.finish) finishes[output.choice] = *output.finish;
      if (output.error) error = output.error;
    };
  }
  bool over(std::size_t choices = 1) const { return error || finishes.size() == choices; }
};

// A gateway shard with its loop.
struct Shard {
  ManualClock clock;
  std::vector<LinkEvent> events;
  std::unique_ptr<StreamEngineClient> client;

  Shard(const std::string& address, std::uint64_t epoch, EngineClientOptions options = {}) {
    options.workers = {address};
    options.gateway_epoch = Epoch(epoch);
    client = std::make_unique<StreamEngineClient>(
        clock, clock.poller(), std::move(options),
        [this](const LinkEvent& event) { events.push_back(event); });
  }
  const WorkerView& view() const { return client->workers()[0]; }
  void wait_connected() {
    clock.run_until([&] { return view().connected; });
  }
  // Lets the backoff pass until a connection stands: each attempt fails or succeeds by itself.
  void reconnect() {
    while (!view().connected) {
      clock.advance(std::chrono::seconds(5));
      const std::size_t seen = events.size();
      clock.run_until([&] { return view().connected || events.size() > seen; });
    }
  }
  Status submit(EngineRequest r, Answer& answer) {
    return client->submit(WorkerId(1), std::move(r), answer.sink());
  }
};

inline EngineServerOptions server_options(const std::string& address) {
  EngineServerOptions options;
  options.listen = address;
  options.name = "worker-a";
  options.engine = "scripted 1";
  options.epoch = Epoch(77);
  return options;
}

inline std::unique_ptr<EngineServer> start_worker(
    EngineServerOptions options, std::shared_ptr<EngineProbe> probe,
    ScriptedEngine::Pace pace = ScriptedEngine::Pace::kFree) {
  std::vector<std::unique_ptr<service::WorkerEngine>> engines;
  engines.push_back(std::make_unique<ScriptedEngine>("alpha", std::move(probe), pace));
  auto server = EngineServer::start(std::move(options), std::move(engines));
  return server ? std::move(*server) : nullptr;
}

}  // namespace penstock::control::testing
