// SimWorker: a worker process on virtual time: ranks with their WorkerLoop and engine, the handoff
// service, and the worker's end of the control streams, with the product's frames.
//
// A rank takes turns as io/control/engine_thread.h does: apply what has come, step, hand on the
// outputs; a step takes step_cost() and what comes meanwhile waits for its end. Outputs travel in
// PendingFrames that merge while a stream is busy. Everything runs on the process's clock, so a
// stopped worker does nothing at all and a dead one never again.
// Concurrency: one thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/control/pending_frame.h"
#include "service/handoff/handoff_service.h"
#include "service/worker/worker_loop.h"
#include "tests/sim/control_link.h"
#include "tests/sim/sim_engine.h"
#include "tests/support/fake_transport.h"

namespace penstock::simulated {

struct SimWorkerOptions {
  std::string name;
  WorkerRole role = WorkerRole::kMixed;
  std::string zone;
  Epoch epoch;
  service::HandoffOptions handoff;
  // How long a frame keeps its stream busy.
  std::function<Duration()> frame_time = [] { return Duration::zero(); };
  // Told each output as it leaves the engine.
  std::function<void(std::uint32_t rank, const service::StreamOutput&)> on_output = {};
};

class SimWorker {
 public:
  SimWorker(testing::FakeNetwork& network, SimWorkerOptions options,
            std::vector<std::unique_ptr<SimEngine>> engines);
  ~SimWorker();
  SimWorker(const SimWorker&) = delete;
  SimWorker& operator=(const SimWorker&) = delete;

  const std::string& name() const { return options_.name; }
  WorkerRole role() const { return options_.role; }
  testing::FakeTransport& transport() { return transport_; }

  // --- Faults
  void stop() { transport_.stop(); }
  void resume() { transport_.resume(); }
  // The process is gone; its streams end. The object only lies there.
  void kill();
  bool dead() const { return transport_.dead(); }
  // No new work; `exited` is called when what was running is over and nobody reads KV here.
  void drain(std::function<void()> exited);
  bool draining() const { return draining_; }

  // --- Streams
  // The gateway's end has connected; `receive` gets this worker's frames, over `link`.
  void accept(std::shared_ptr<ControlLink> link,
              std::function<void(control::wire::WorkerFrame)> receive);
  void on_frame(ControlLink& link, const control::wire::GatewayFrame& frame);
  void on_end(ControlLink& link);
  std::vector<std::shared_ptr<ControlLink>> links() const;

  // --- What it holds
  std::size_t ranks() const { return ranks_.size(); }
  SimEngine& engine(std::size_t rank) { return *ranks_[rank]->engine; }
  std::size_t open(std::size_t rank) const { return ranks_[rank]->loop.open(); }
  // Steps begun since it started.
  std::uint64_t steps(std::size_t rank) const { return ranks_[rank]->steps; }
  service::HandoffCounters handoffs() const { return service_->counters(); }

 private:
  struct Rank {
    Rank(std::unique_ptr<SimEngine> e, std::uint32_t number)
        : engine(std::move(e)), loop(*engine, {}), index(number) {}
    std::unique_ptr<SimEngine> engine;
    service::WorkerLoop loop;
    std::uint32_t index;
    EngineLoad load;  // as of the last turn
    std::vector<service::WorkerCommand> mailbox;
    bool turning = false;  // a turn is due, or a step under way
    std::uint64_t steps = 0;
  };
  struct Stream {
    std::shared_ptr<ControlLink> link;
    std::function<void(control::wire::WorkerFrame)> receive;
    control::PendingFrame pending;
    bool greeted = false;
    bool busy = false;
  };

  void wake(Rank& rank);
  void turn(Rank& rank);
  void end_step(Rank& rank, std::vector<service::StreamOutput> outputs);
  void deliver(Rank& rank, const std::vector<service::StreamOutput>& outputs);
  void refuse(service::StreamId stream, std::uint64_t request, Error error);
  void submit(service::StreamId stream, const control::wire::Submit& submit);
  void post(Rank& rank, service::WorkerCommand command);
  void flush(service::StreamId id);
  void beat();
  void look_for_exit();
  WorkerDescription description() const;
  HandoffUse use() const;
  std::map<service::StreamId, Stream>::iterator find(ControlLink& link);

  SimWorkerOptions options_;
  testing::FakeTransport transport_;
  Clock& clock_;  // the process's
  std::unique_ptr<service::HandoffService> service_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<service::StreamId, Stream> streams_;
  std::uint64_t last_stream_ = 0;
  bool draining_ = false;
  std::function<void()> exited_;
};

}  // namespace penstock::simulated
