// EngineThread: runs one engine's WorkerLoop on its own thread, fed by a bounded mailbox.
//
// Between steps the thread takes all commands at once, applies them, steps once when there is work,
// publishes the load and hands the outputs on, on this same thread, so that a token reaches the
// socket without another hop. With nothing to do it sleeps; with requests that all wait for
// something from outside it takes a turn every kWaitingTurn, which counts as a step: it isn't
// stuck.
//
// Invariants: commands are applied in the order in which they were posted; a command posted while
// a step runs takes effect before the next one. The load board is written after each turn and read
// by anyone without waiting for the engine, so a hung engine shows as a step that stands still.
// Limits: submits and prompt bytes waiting in the mailbox, cancels and expert queries waiting.
// Errors: post_submit() fails with kOverloaded when the mailbox is full.
// Concurrency: posts from any thread. stop() waits for the running step to return.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "service/worker/worker_loop.h"

namespace penstock::control {

// The newest load of every rank of this worker.
class LoadBoard {
 public:
  explicit LoadBoard(std::size_t ranks) : loads_(ranks), experts_(ranks) {}

  void publish(std::size_t rank, const EngineLoad& load, ExpertUse experts);
  std::vector<EngineLoad> snapshot() const;
  // Calls `read` with the loads, under the board's lock.
  template <typename Read>
  void visit(Read read) const {
    const std::lock_guard lock(mutex_);
    read(loads_);
  }
  // Of all ranks.
  std::vector<ExpertUse> experts() const {
    const std::lock_guard lock(mutex_);
    return experts_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<EngineLoad> loads_;
  std::vector<ExpertUse> experts_;
};

struct MailboxLimits {
  std::size_t submits_max = 4096;
  std::size_t prompt_bytes_max = std::size_t{256} << 20;
  std::size_t cancels_max = 65536;
  std::size_t expert_queries_max = 64;
};

class EngineThread {
 public:
  // Takes the outputs of one turn; called on the engine's thread, never empty.
  using Deliver = std::function<void(std::vector<service::StreamOutput>&)>;

  // `drained` is called once, on the engine's thread, when a drain is complete.
  EngineThread(std::unique_ptr<service::WorkerEngine> engine, service::WorkerLimits worker_limits,
               MailboxLimits limits, std::size_t rank, std::uint32_t model, LoadBoard& board,
               Deliver deliver, std::function<void()> drained);
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  const ModelDescription& description() const { return engine_->description(); }
  void start();
  Status post_submit(service::SubmitCommand command);
  // False when more cancels wait than requests could be open: the sender is out of order.
  bool post_cancel(service::CancelCommand command);
  void post_drop(service::StreamId stream);
  void post_drain();
  // Fails with kOverloaded when too many wait.
  Status post_experts(service::ExpertsCommand command);
  // Ends the thread after the current turn; open requests are left as they are.
  void stop();

 private:
  void run();
  // Makes the thread look whether there is work.
  void wake();
  void post(service::WorkerCommand command);  // with the mutex held

  std::unique_ptr<service::WorkerEngine> engine_;
  service::WorkerLoop loop_;
  const MailboxLimits limits_;
  const std::size_t rank_;
  const std::uint32_t model_;  // index into the hello's models
  LoadBoard& board_;
  const Deliver deliver_;
  const std::function<void()> drained_;

  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<service::WorkerCommand> mailbox_;
  std::size_t submits_ = 0;
  std::size_t prompt_bytes_ = 0;
  std::size_t cancels_ = 0;
  std::size_t expert_queries_ = 0;
  bool stopping_ = false;
  bool woken_ = false;
  std::thread thread_;
};

}  // namespace penstock::control
