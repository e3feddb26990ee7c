#include "tests/sim/sim_worker.h"

#include <algorithm>
#include <utility>

namespace penstock::simulated {

using service::StreamId;
using service::StreamOutput;
namespace wire = control::wire;

namespace {

constexpr Duration kHeartbeat = std::chrono::milliseconds(200);
// Between the last request and the end of the process: KV that is still being read.
constexpr Duration kExitLook = std::chrono::milliseconds(20);

}  // namespace

SimWorker::SimWorker(testing::FakeNetwork& network, SimWorkerOptions options,
                     std::vector<std::unique_ptr<SimEngine>> engines)
    : options_(std::move(options)),
      transport_(network, "sim:" + options_.name),
      clock_(transport_.clock()) {
  options_.handoff.epoch = options_.epoch;
  service_ = std::make_unique<service::HandoffService>(transport_, options_.handoff);
  for (auto& engine : engines) {
    ranks_.push_back(
        std::make_unique<Rank>(std::move(engine), static_cast<std::uint32_t>(ranks_.size())));
    Rank& rank = *ranks_.back();
    if (options_.role != WorkerRole::kMixed) {
      SimEngine* const e = rank.engine.get();
      e->connect(service_->add_rank(e->memory(), [e] { e->on_handoff_news(); }));
    }
    rank.engine->set_waker([this, &rank] { wake(rank); });
    rank.load = rank.loop.load();
  }
  service_->start();
  clock_.call_at(clock_.now() + kHeartbeat, [this] { beat(); });
}

SimWorker::~SimWorker() {
  kill();
  service_.reset();  // its last news go to the engines
}

void SimWorker::kill() {
  if (dead()) return;
  transport_.kill();
  for (auto& [id, stream] : std::exchange(streams_, {}))
    stream.link->close(Side::kWorker);
  for (const auto& rank : ranks_)
    rank->engine->detach();
}

WorkerDescription SimWorker::description() const {
  WorkerDescription out;
  out.epoch = options_.epoch;
  out.name = options_.name;
  out.engine = "simulated";
  out.models = {ranks_[0]->engine->description()};
  out.role = options_.role;
  out.zone = options_.zone;
  if (options_.role != WorkerRole::kMixed) out.transport = transport_.address();
  return out;
}

HandoffUse SimWorker::use() const {
  const service::HandoffCounters now = service_->counters();
  HandoffUse use;
  use.open = now.owner.open;
  use.blocks_held = now.owner.blocks_held;
  use.pulls_running = now.pulls_running;
  use.pulls_done = now.pulls_done;
  use.bytes_pulled = now.bytes_pulled;
  return use;
}

// --- Ranks

void SimWorker::post(Rank& rank, service::WorkerCommand command) {
  rank.mailbox.push_back(std::move(command));
  wake(rank);
}

void SimWorker::wake(Rank& rank) {
  if (std::exchange(rank.turning, true)) return;
  clock_.post([this, &rank] { turn(rank); });
}

void SimWorker::turn(Rank& rank) {
  std::vector<StreamOutput> outputs;
  for (service::WorkerCommand& command : std::exchange(rank.mailbox, {}))
    rank.loop.apply(std::move(command), outputs);
  if (!rank.loop.has_work()) {
    rank.load = rank.loop.load();
    deliver(rank, outputs);
    rank.turning = false;
    look_for_exit();
    return;
  }
  ++rank.steps;
  clock_.call_at(clock_.now() + rank.engine->step_cost(),
                 [this, &rank, outputs = std::move(outputs)] { end_step(rank, outputs); });
}

void SimWorker::end_step(Rank& rank, std::vector<StreamOutput> outputs) {
  rank.loop.step(outputs);
  rank.load = rank.loop.load();
  deliver(rank, outputs);
  turn(rank);
}

void SimWorker::deliver(Rank& rank, const std::vector<StreamOutput>& outputs) {
  std::vector<StreamId> told;
  for (const StreamOutput& output : outputs) {
    if (options_.on_output) options_.on_output(rank.index, output);
    const auto found = streams_.find(output.stream);
    if (found == streams_.end()) continue;
    found->second.pending.add(output.output, output.has_logprobs);
    told.push_back(output.stream);
  }
  for (const StreamId id : told)
    flush(id);
}

// --- Streams

void SimWorker::accept(std::shared_ptr<ControlLink> link,
                       std::function<void(wire::WorkerFrame)> receive) {
  Stream& stream = streams_[StreamId(++last_stream_)];
  stream.link = std::move(link);
  stream.receive = std::move(receive);
  control::encode(description(), *stream.pending.frame().mutable_hello());
}

std::map<StreamId, SimWorker::Stream>::iterator SimWorker::find(ControlLink& link) {
  return std::ranges::find_if(streams_,
                              [&](const auto& s) { return s.second.link.get() == &link; });
}

std::vector<std::shared_ptr<ControlLink>> SimWorker::links() const {
  std::vector<std::shared_ptr<ControlLink>> out;
  for (const auto& [id, stream] : streams_)
    out.push_back(stream.link);
  return out;
}

void SimWorker::on_frame(ControlLink& link, const wire::GatewayFrame& frame) {
  const auto found = find(link);
  if (found == streams_.end()) return;
  const StreamId id = found->first;
  if (frame.has_hello()) {
    found->second.greeted = true;
    found->second.pending.touch();
    flush(id);
  }
  for (const wire::Submit& each : frame.submits())
    submit(id, each);
  for (const std::uint64_t request : frame.cancels())
    for (const auto& rank : ranks_)
      post(*rank, service::CancelCommand{id, RequestId(request)});
}

void SimWorker::submit(StreamId stream, const wire::Submit& submit) {
  Result<EngineRequest> request = control::decode(submit);
  ENSURE(request);
  if (draining_) {
    refuse(stream, submit.request_id(),
           {ErrorCode::kUnavailable, "the worker is draining; place it elsewhere", {}, {}});
  } else if (submit.rank() >= ranks_.size()) {
    refuse(stream, submit.request_id(), {ErrorCode::kModelNotFound, "no such rank", {}, {}});
  } else {
    post(*ranks_[submit.rank()], service::SubmitCommand{stream, std::move(*request)});
  }
}

void SimWorker::refuse(StreamId stream, std::uint64_t request, Error error) {
  EngineOutput output;
  output.request = RequestId(request);
  output.finish = FinishReason::kError;
  output.error = std::move(error);
  streams_.at(stream).pending.add(output, false);
  flush(stream);
}

void SimWorker::on_end(ControlLink& link) {
  const auto found = find(link);
  if (found == streams_.end()) return;
  const StreamId id = found->first;
  streams_.erase(found);
  link.close(Side::kWorker);
  for (const auto& rank : ranks_)
    post(*rank, service::DropStreamCommand{id});
}

void SimWorker::flush(StreamId id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  Stream& stream = found->second;
  if (!stream.greeted || stream.busy || !stream.pending.due()) return;
  wire::WorkerFrame& frame = stream.pending.frame();
  frame.set_draining(draining_);
  std::uint64_t steps = 0;
  for (const auto& rank : ranks_) {
    control::encode(rank->load, rank->index, *frame.add_loads());
    steps += rank->load.step;
  }
  frame.set_step(steps);
  if (options_.role != WorkerRole::kMixed) control::encode(use(), *frame.mutable_handoffs());
  wire::WorkerFrame out;
  stream.pending.take(out);
  stream.link->send(Side::kWorker,
                    [receive = stream.receive, out = std::move(out)] { receive(out); });
  const Duration busy = options_.frame_time();
  if (busy == Duration::zero()) return;
  stream.busy = true;
  clock_.call_at(clock_.now() + busy, [this, id] {
    const auto again = streams_.find(id);
    if (again == streams_.end()) return;
    again->second.busy = false;
    flush(id);
  });
}

void SimWorker::beat() {
  for (auto& [id, stream] : streams_) {
    stream.pending.touch();
    flush(id);
  }
  clock_.call_at(clock_.now() + kHeartbeat, [this] { beat(); });
}

// --- Drain

void SimWorker::drain(std::function<void()> exited) {
  if (std::exchange(draining_, true)) return;
  exited_ = std::move(exited);
  for (const auto& rank : ranks_)
    post(*rank, service::DrainCommand{});
  for (auto& [id, stream] : streams_) {
    stream.pending.touch();
    flush(id);
  }
}

void SimWorker::look_for_exit() {
  if (!exited_) return;
  const bool empty =
      std::ranges::all_of(ranks_, [](const auto& rank) { return rank->loop.drained(); });
  if (!empty) return;
  const service::HandoffCounters now = service_->counters();
  const bool busy = std::ranges::any_of(streams_, [](const auto& s) { return s.second.busy; });
  if (busy || now.owner.open > 0 || now.pulls_running > 0) {
    clock_.call_at(clock_.now() + kExitLook, [this] { look_for_exit(); });
    return;
  }
  const auto exited = std::exchange(exited_, {});
  kill();
  exited();
}

}  // namespace penstock::simulated
