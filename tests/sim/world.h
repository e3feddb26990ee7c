// World: gateways, workers, clients, their networks and their time, for one simulated life.
//
// Gateways are the product's Gateway over a SimEngines each; workers are SimWorkers at places, to
// which a worker that died or was drained comes back as a new process. Everything is driven by
// advance(). A digest of all that happens, with its times, tells two runs apart.
//
// Concurrency: one thread; nothing depends on anything but the options.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "service/gateway/gateway.h"
#include "tests/sim/answer.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_engines.h"
#include "tests/sim/sim_worker.h"
#include "tests/sim/toy_engine.h"

namespace penstock::simulated {

struct PlaceOptions {
  WorkerRole role = WorkerRole::kMixed;
  std::uint32_t ranks = 1;
  std::string zone;
  ToyProfile profile;
};

struct WorldOptions {
  std::uint64_t seed = 1;
  std::size_t gateways = 1;
  bool gateways_alike = false;  // both number their requests the same way
  std::vector<PlaceOptions> places;
  service::HandoffOptions handoff;
  gateway::GatewayLimits limits;
  gateway::PolicyNames policies;
  Duration write_timeout = std::chrono::seconds(30);
  std::function<Duration()> control_latency = [] { return std::chrono::microseconds(60); };
  std::function<Duration()> frame_time = [] { return Duration::zero(); };
  // Another engine than the toy; for the place and rank.
  std::function<std::unique_ptr<SimEngine>(std::size_t, std::uint32_t)> make_engine = {};
};

class Digest {
 public:
  void add(std::string_view text) {
    for (const char c : text)
      value_ = (value_ ^ static_cast<std::uint8_t>(c)) * 0x100000001b3U;
    value_ ^= text.size();
  }
  void add(std::uint64_t number) {
    value_ = (value_ ^ number) * 0x9E3779B97F4A7C15U + (value_ >> 31);
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

// A request as its client and its gateway saw it.
struct Asked {
  std::string body;
  std::size_t gateway = 0;
  std::shared_ptr<SimClient> client;
  Instant at;
  bool over = false;  // the gateway has reported it
  Instant over_at;
  RequestRecord record;

  bool finished() const { return client->end == ClientEnd::kFinished; }
  Answer answer() const { return read_answer(client->all(), client->streamed); }
};

class World {
 public:
  explicit World(WorldOptions options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  testing::VirtualClock& clock() { return network.clock; }
  void advance(Duration duration) { network.clock.advance(duration); }
  // Advances until `done`, in steps of `step`; false when `most` passes first.
  bool advance_until(const std::function<bool()>& done, Duration most,
                     Duration step = std::chrono::microseconds(500));
  // Until every request is over; false when one is not after `most`.
  bool finish(Duration most = std::chrono::minutes(15));
  // Until nothing is left anywhere; the empty text, or what is left after `most`.
  std::string settle(Duration most = std::chrono::seconds(60));

  // --- Workers
  std::size_t places() const { return workers_.size(); }
  bool is_up(std::size_t place) const { return workers_[place] != nullptr; }
  SimWorker& worker(std::size_t place) { return *workers_[place]; }
  void start(std::size_t place);
  void kill(std::size_t place);
  // Drains it, and starts it again `pause` after it has ended.
  void roll(std::size_t place, Duration pause);

  // --- Gateways
  std::size_t gateways() const { return gateways_.size(); }
  gateway::Gateway& gateway(std::size_t i) { return gateways_[i]->gateway; }
  gateway::GatewayContext& context(std::size_t i) { return gateways_[i]->context; }
  SimEngines& engines(std::size_t i) { return gateways_[i]->engines; }
  // Its process dies and is there again at once: clients are cut off, streams end.
  void crash_gateway(std::size_t i);

  std::shared_ptr<Asked> ask(std::size_t gateway, std::string body, ClientPlan plan = {});
  const std::vector<std::shared_ptr<Asked>>& asked() const { return asked_; }

  // What is not as it should be when nothing is going on; empty: all is well.
  std::string leftovers() const;
  std::uint64_t digest() const;

  testing::FakeNetwork network;

 private:
  void note(std::uint64_t place, std::uint32_t rank, const service::StreamOutput& output);

  class Inline final : public ComputePool {
   public:
    bool submit(std::function<void()> work) override {
      work();
      return true;
    }
  };
  struct GatewayRig final : RequestObserver {
    GatewayRig(World& world, std::size_t index);
    void request_started() override {}
    void request_finished(const RequestRecord& record) override;

    World& world;
    SimEngines engines;
    Inline pool;
    std::array<std::uint8_t, 32> secret{};
    gateway::PromptEncoder encoder;
    gateway::GatewayContext context;
    gateway::Gateway gateway;
    Gate gate;
  };

  WorldOptions options_;
  std::vector<std::shared_ptr<SimWorker>> workers_;    // by place; null while it is down
  std::vector<std::shared_ptr<SimWorker>> graveyard_;  // their memory may be mapped elsewhere
  std::vector<std::unique_ptr<GatewayRig>> gateways_;
  std::vector<std::shared_ptr<Asked>> asked_;
  std::uint64_t last_epoch_ = 0;
  Digest digest_;
};

// The model that all gateways of all worlds serve, and what toys say in it.
const gateway::ModelCatalog& toy_catalog();
const ToyVocabulary& toy_vocabulary();
inline constexpr const char* kToyModel = "nano";

// What the body's answer is when it is computed alone by one engine that nothing happens to.
const Answer& alone(const std::string& body);

}  // namespace penstock::simulated
