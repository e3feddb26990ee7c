// SimEngines: the EngineClient of one simulated gateway shard, as io/control's StreamEngineClient
// behaves, over ControlLinks instead of sockets.
//
// It connects to the worker behind each address (which may die and come back as another process),
// tries again with backoff, drops a worker that says nothing for 2 s or breaks the protocol, and
// then gives each open request on it one kUnavailable. Every frame goes through the product's codec
// and FrameChecker; a breach is counted, for the test to fail on.
//
// Invariants: as port/engine_client.h. Concurrency: one thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "io/control/frame_checker.h"
#include "port/engine_client.h"
#include "tests/sim/control_link.h"
#include "tests/sim/sim_worker.h"

namespace penstock::simulated {

class SimEngines final : public EngineClient {
 public:
  // The worker that listens at a place now; null: nobody.
  using Find = std::function<std::shared_ptr<SimWorker>(std::size_t place)>;

  SimEngines(testing::VirtualClock& clock, std::size_t places, Find find,
             std::function<Duration()> latency, std::uint64_t epoch);
  ~SimEngines() override;

  std::span<const WorkerView> workers() const override { return views_; }
  Status submit(WorkerId worker, EngineRequest request, Sink sink) override;
  void cancel(RequestId request) override;
  void forget(RequestId request) override;

  // The process dies: all streams end, and requests with them.
  void crash();
  std::size_t open() const { return open_.size(); }
  // Requests that the workers have not finished, forgotten ones included.
  std::size_t unfinished() const;
  const std::vector<std::string>& violations() const { return violations_; }

 private:
  enum class Phase : std::uint8_t { kWaiting, kConnecting, kConnected };
  struct Place {
    Phase phase = Phase::kWaiting;
    std::shared_ptr<ControlLink> link;
    std::weak_ptr<SimWorker> worker;  // at its other end
    control::FrameChecker checker;
    Clock::TimerId timer = 0;
    Instant opened_at;
    Duration backoff{};
  };
  struct Open {
    std::size_t place;
    std::shared_ptr<Sink> sink;
    std::uint32_t unfinished;
  };

  void connect(std::size_t index);
  void arm(std::size_t index, Instant when);
  void on_timer(std::size_t index);
  void on_frame(std::size_t index, const control::wire::WorkerFrame& frame);
  void drop(std::size_t index, const std::string& reason);
  void deliver(EngineOutput output);
  void send(std::size_t index, control::wire::GatewayFrame frame);

  testing::VirtualClock& clock_;
  Find find_;
  std::function<Duration()> latency_;
  std::uint64_t epoch_;
  Rng jitter_;
  std::vector<Place> places_;
  std::vector<WorkerView> views_;
  std::map<RequestId, Open> open_;
  std::vector<std::string> violations_;
};

}  // namespace penstock::simulated
