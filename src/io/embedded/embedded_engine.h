// EmbeddedEngine: engine::Engine as the worker's WorkerEngine, with or without a KV cache and the
// handoff service.
//
// With a cache, a request's blocks are fetched before the engine sees it; requests whose fetch is
// under way wait here and the engine goes on with others. A decode leg is given to the engine at
// once and waits there, with its blocks reserved.
//
// Invariants and errors: as WorkerEngine; what the engine would refuse is refused at submit().
// Concurrency: as WorkerEngine.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "core/kvcache/load_model.h"
#include "engine/engine.h"
#include "io/embedded/handoff_legs.h"
#include "io/embedded/kv_connector.h"
#include "service/worker/worker_engine.h"

namespace penstock {

class EmbeddedEngine final : public service::WorkerEngine {
 public:
  explicit EmbeddedEngine(std::unique_ptr<engine::Engine> engine) : engine_(std::move(engine)) {}
  // Requests that are still open hold leases of the cache, which goes before the engine does.
  ~EmbeddedEngine() override { engine_->abandon(); }

  // Uses the KV cache from now on. Before the first request.
  Status connect(KvConnectorOptions options);

  // Takes part in handoffs from now on. Before the first request; the port's wake is to call
  // on_handoff_news(), from any thread.
  void hand_off(HandoffPort& port, HandoffLegs::Log log = {});
  void on_handoff_news();
  engine::Engine& engine() { return *engine_; }
  // The service behind the port is about to go. After the last step.
  void detach_handoff() {
    if (legs_) legs_->detach();
  }

  // Waits for the KV daemon; false when none came in time.
  bool wait_connected(Duration timeout) const {
    return cache_ != nullptr && cache_->wait_connected(timeout);
  }

  const ModelDescription& description() const override { return engine_->description(); }
  Status submit(EngineRequest request) override;
  void cancel(RequestId request) override;
  bool has_work() const override;
  void step(std::vector<EngineOutput>& outputs) override;
  EngineLoad load() const override;
  ExpertUse expert_use() const override { return engine_->expert_use(); }
  ExpertReport expert_report() const override { return engine_->expert_report(); }
  Status set_expert_map(const ExpertMap& map) override { return engine_->set_expert_map(map); }
  void set_waker(std::function<void()> waker) override { waker_ = std::move(waker); }

 private:
  struct Waiting {
    EngineRequest request;
    std::shared_ptr<KvFetch> fetch;
  };
  void admit(std::vector<EngineOutput>& outputs);
  std::shared_ptr<KvFetch> fetch(const EngineRequest& request);

  std::unique_ptr<HandoffLegs> legs_;  // outlives what engine_ holds of it
  std::unique_ptr<engine::Engine> engine_;
  std::function<void()> waker_;
  // Seeded with nothing: until a prefill was seen, everything that is there is loaded.
  kvcache::PrefillModel prefill_{PrefillCoefficients{}};
  std::unique_ptr<KvConnector> cache_;  // uses engine_: destroyed first
  std::deque<Waiting> waiting_;         // in order of submission
};

}  // namespace penstock
