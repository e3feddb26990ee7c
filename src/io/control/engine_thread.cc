#include "io/control/engine_thread.h"

#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace penstock::control {
namespace {

constexpr auto kWaitingTurn = std::chrono::seconds(1);

}  // namespace

void LoadBoard::publish(std::size_t rank, const EngineLoad& load, ExpertUse experts) {
  const std::lock_guard lock(mutex_);
  loads_[rank] = load;
  experts_[rank] = std::move(experts);
}

std::vector<EngineLoad> LoadBoard::snapshot() const {
  const std::lock_guard lock(mutex_);
  return loads_;
}

EngineThread::EngineThread(std::unique_ptr<service::WorkerEngine> engine,
                           service::WorkerLimits worker_limits, MailboxLimits limits,
                           std::size_t rank, std::uint32_t model, LoadBoard& board, Deliver deliver,
                           std::function<void()> drained)
    : engine_(std::move(engine)),
      loop_(*engine_, worker_limits),
      limits_(limits),
      rank_(rank),
      model_(model),
      board_(board),
      deliver_(std::move(deliver)),
      drained_(std::move(drained)) {}

EngineThread::~EngineThread() {
  stop();
  engine_.reset();  // it may still call wake()
}

void EngineThread::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  news_.notify_one();
}

void EngineThread::start() {
  engine_->set_waker([this] { wake(); });
  thread_ = std::thread([this] { run(); });
}

void EngineThread::post(service::WorkerCommand command) {
  mailbox_.push_back(std::move(command));
  if (mailbox_.size() == 1) news_.notify_one();
}

Status EngineThread::post_submit(service::SubmitCommand command) {
  const std::size_t bytes = command.request.prompt->size() * sizeof(TokenId);
  const std::lock_guard lock(mutex_);
  if (submits_ >= limits_.submits_max ||
      (submits_ > 0 && prompt_bytes_ + bytes > limits_.prompt_bytes_max)) {
    return fail(
        ErrorCode::kOverloaded,
        fmt::format("{} requests wait for the engine to look at them; retry later", submits_));
  }
  ++submits_;
  prompt_bytes_ += bytes;
  post(std::move(command));
  return {};
}

bool EngineThread::post_cancel(service::CancelCommand command) {
  const std::lock_guard lock(mutex_);
  if (cancels_ >= limits_.cancels_max) return false;
  ++cancels_;
  post(command);
  return true;
}

void EngineThread::post_drop(service::StreamId stream) {
  const std::lock_guard lock(mutex_);
  post(service::DropStreamCommand{stream});
}

void EngineThread::post_drain() {
  const std::lock_guard lock(mutex_);
  post(service::DrainCommand{});
}

Status EngineThread::post_experts(service::ExpertsCommand command) {
  const std::lock_guard lock(mutex_);
  if (expert_queries_ >= limits_.expert_queries_max) {
    return fail(
        ErrorCode::kOverloaded,
        fmt::format("{} questions about experts wait for the engine already", expert_queries_));
  }
  ++expert_queries_;
  post(std::move(command));
  return {};
}

void EngineThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    news_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void EngineThread::run() {
  std::vector<service::WorkerCommand> commands;
  std::vector<service::StreamOutput> outputs;
  bool reported_drained = false;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const auto is_due = [&] { return stopping_ || woken_ || !mailbox_.empty(); };
      if (!loop_.has_work()) {
        if (loop_.open() == 0) {
          news_.wait(lock, is_due);
        } else if (!news_.wait_for(lock, kWaitingTurn, is_due)) {
          loop_.turn();
        }
      }
      woken_ = false;
      if (stopping_) return;
      commands.swap(mailbox_);
      submits_ = prompt_bytes_ = cancels_ = expert_queries_ = 0;
    }
    for (service::WorkerCommand& command : commands)
      loop_.apply(std::move(command), outputs);
    commands.clear();
    if (loop_.has_work()) loop_.step(outputs);
    EngineLoad load = loop_.load();
    load.model = model_;
    board_.publish(rank_, load, loop_.expert_use());
    if (!outputs.empty()) deliver_(outputs);
    outputs.clear();
    if (!reported_drained && loop_.drained()) {
      reported_drained = true;
      drained_();
    }
  }
}

}  // namespace penstock::control
