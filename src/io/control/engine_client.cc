#include "io/control/engine_client.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/rng.h"
#include "io/control/client_stream.h"
#include "io/control/frame_checker.h"

namespace penstock::control {

struct StreamEngineClient::State {
  enum class Phase : std::uint8_t { kWaiting, kConnecting, kConnected };

  struct Link {
    std::string address;
    Phase phase = Phase::kWaiting;
    std::unique_ptr<ClientStream> stream;
    std::vector<wire::WorkerFrame> frames;  // done with; the stream uses their memory again
    FrameChecker checker;
    Clock::TimerId timer = 0;
    Instant timer_at;
    Instant opened_at;
    Duration backoff{};
  };
  // A sink is shared so that it can run while it is being forgotten.
  struct Open {
    std::size_t link;
    std::shared_ptr<Sink> sink;
    std::uint32_t unfinished;
    bool cancelled = false;  // sent once: repeating it would fill the queue
  };

  State(Clock& c, Poller& p, EngineClientOptions o,
        std::function<void(const LinkEvent&)> on_link_call);
  ~State();

  void connect(std::size_t index);
  void on_wake(std::size_t index);
  void on_frame(std::size_t index, const wire::WorkerFrame& frame);
  void on_timer(std::size_t index);
  void arm(std::size_t index, Instant when);
  void drop(std::size_t index, std::string reason);
  void fail_requests(std::size_t index, const std::string& reason);
  void deliver(EngineOutput output);
  Result<std::size_t> connected_link(WorkerId worker) const;
  Status ask_experts(WorkerId worker, std::uint32_t rank, const ExpertMap* map, ExpertSink answer);
  void answer_experts(std::uint64_t number, Result<ExpertReport> report);
  Status submit(WorkerId worker, EngineRequest request, Sink sink);

  Clock& clock;
  Poller& poller;
  const EngineClientOptions options;
  const std::function<void(const LinkEvent&)> on_link;
  Rng jitter;
  std::vector<Link> links;
  std::vector<WorkerView> views;
  std::unordered_map<RequestId, Open> open;
  struct ExpertQuestion {
    std::size_t link;
    ExpertSink answer;
  };
  std::map<std::uint64_t, ExpertQuestion> expert_questions;  // by number
  std::uint64_t last_expert_question = 0;
  EngineClientCounters counters;
};

StreamEngineClient::State::State(Clock& c, Poller& p, EngineClientOptions o,
                                 std::function<void(const LinkEvent&)> on_link_call)
    : clock(c),
      poller(p),
      options(std::move(o)),
      on_link(std::move(on_link_call)),
      jitter(options.gateway_epoch.value ^ options.shard) {
  links.resize(options.workers.size());
  views.resize(options.workers.size());
  for (std::size_t i = 0; i < links.size(); ++i) {
    links[i].address = options.workers[i];
    views[i].description.id = WorkerId(i + 1);
    views[i].revision = 1;
    connect(i);
  }
}

StreamEngineClient::State::~State() {
  for (Link& link : links) {
    if (link.timer != 0) clock.cancel(link.timer);
    if (link.stream) link.stream->close();  // all at once; joining follows one by one
  }
}

void StreamEngineClient::State::connect(std::size_t index) {
  Link& link = links[index];
  link.checker = {};
  link.phase = Phase::kConnecting;
  link.opened_at = clock.now();
  wire::Hello hello;
  hello.set_gateway_epoch(options.gateway_epoch.value);
  hello.set_shard(options.shard);
  hello.set_protocol_version(kProtocolVersion);
  ClientStreamLimits limits;
  limits.send_bytes_max = options.send_bytes_max;
  limits.frames_max = options.frames_max;
  link.stream = std::make_unique<ClientStream>(clock, poller, link.address, std::move(hello),
                                               limits, [this, index] { on_wake(index); });
  arm(index, link.opened_at + options.connect_max);
}

void StreamEngineClient::State::arm(std::size_t index, Instant when) {
  Link& link = links[index];
  if (link.timer != 0) clock.cancel(link.timer);
  link.timer_at = when;
  link.timer = clock.call_at(when, [this, index] {
    links[index].timer = 0;
    on_timer(index);
  });
}

void StreamEngineClient::State::on_wake(std::size_t index) {
  auto frames = std::move(links[index].frames);
  const auto ended = links[index].stream->take(frames);
  for (const wire::WorkerFrame& frame : frames) {
    on_frame(index, frame);
    if (!links[index].stream) return;  // dropped for what it said
  }
  links[index].frames = std::move(frames);
  if (ended) drop(index, *ended);
}

void StreamEngineClient::State::on_frame(std::size_t index, const wire::WorkerFrame& frame) {
  Link& link = links[index];
  WorkerView& view = views[index];
  ++counters.frames;
  auto outputs = link.checker.check(frame);
  if (!outputs) {
    ++counters.violations;
    drop(index, "the worker broke the protocol: " + outputs.error().message);
    return;
  }
  view.heard_at = clock.now();
  view.draining = link.checker.draining();
  view.handoffs = link.checker.handoffs();
  if (!frame.loads().empty()) view.loads = link.checker.loads();
  if (link.phase == Phase::kConnecting) {
    link.phase = Phase::kConnected;
    const WorkerId id = view.description.id;
    view.description = link.checker.description();
    view.description.id = id;
    view.connected = true;
    ++counters.connects;
    arm(index, view.heard_at + options.silent_max);
    if (on_link) on_link({id, link.address, true, {}});
  }
  if (!frame.experts().empty()) view.experts = link.checker.experts();
  ++view.revision;
  auto answers = link.checker.take_expert_answers();
  for (EngineOutput& output : *outputs)
    deliver(std::move(output));
  for (auto& answer : answers)
    answer_experts(answer.number, std::move(answer.report));
}

void StreamEngineClient::State::answer_experts(std::uint64_t number, Result<ExpertReport> report) {
  const auto found = expert_questions.find(number);
  if (found == expert_questions.end()) return;
  const ExpertSink answer = std::move(found->second.answer);
  expert_questions.erase(found);
  answer(std::move(report));
}

void StreamEngineClient::State::deliver(EngineOutput output) {
  const auto found = open.find(output.request);
  if (found == open.end()) return;  // forgotten by a sink of the same frame
  ++counters.outputs;
  const std::shared_ptr<Sink> sink = found->second.sink;
  if (output.finish && (output.finish == FinishReason::kError || --found->second.unfinished == 0)) {
    --views[found->second.link].in_flight;
    open.erase(found);
  }
  (*sink)(std::move(output));
}

void StreamEngineClient::State::on_timer(std::size_t index) {
  Link& link = links[index];
  if (link.phase == Phase::kWaiting) {
    connect(index);
    return;
  }
  // A shard that was itself stopped must not blame the worker: what arrived meanwhile counts, and
  // when the timer is this late, the worker gets another turn.
  const Instant now = clock.now();
  const bool stalled = now - link.timer_at > options.silent_max / 2;
  on_wake(index);
  if (link.timer != 0 || !link.stream) return;  // dropped, or just connected
  if (link.phase == Phase::kConnected) {
    const Instant due = views[index].heard_at + options.silent_max;
    if (due > now) {
      arm(index, due);
      return;
    }
  }
  if (stalled) {
    arm(index, now + options.silent_max);
    return;
  }
  if (link.phase == Phase::kConnecting) {
    drop(index, "no hello from the worker in time");
    return;
  }
  ++counters.silences;
  drop(index, fmt::format(
                  "the worker said nothing for {} ms",
                  std::chrono::duration_cast<std::chrono::milliseconds>(now - views[index].heard_at)
                      .count()));
}

void StreamEngineClient::State::drop(std::size_t index, std::string reason) {
  Link& link = links[index];
  WorkerView& view = views[index];
  ++counters.disconnects;
  link.stream.reset();
  link.phase = Phase::kWaiting;
  view.connected = false;
  view.draining = false;
  view.handoffs = {};
  view.experts.clear();
  view.loads.clear();
  ++view.revision;
  const Instant now = clock.now();
  if (now - link.opened_at > options.backoff_max) link.backoff = Duration::zero();
  link.backoff = std::clamp(link.backoff * 2, options.backoff_min, options.backoff_max);
  // Half to the whole of it, so that the shards of a gateway do not knock in step.
  const auto wait = static_cast<double>(link.backoff.count()) * (0.5 + jitter.uniform() / 2);
  arm(index, now + Duration(static_cast<Duration::rep>(wait)));
  if (on_link) on_link({view.description.id, link.address, false, reason});
  fail_requests(index, reason);
}

void StreamEngineClient::State::fail_requests(std::size_t index, const std::string& reason) {
  std::vector<RequestId> lost;
  for (const auto& [request, entry] : open) {
    if (entry.link == index) lost.push_back(request);
  }
  std::ranges::sort(lost);
  for (const RequestId request : lost) {
    EngineOutput output;
    output.request = request;
    output.finish = FinishReason::kError;
    output.error = Error{ErrorCode::kUnavailable,
                         fmt::format("lost the worker at {}: {}", links[index].address, reason),
                         {},
                         {}};
    deliver(std::move(output));
  }
  std::vector<std::uint64_t> unanswered;
  for (const auto& [number, question] : expert_questions) {
    if (question.link == index) unanswered.push_back(number);
  }
  for (const std::uint64_t number : unanswered) {
    answer_experts(number,
                   fail(ErrorCode::kUnavailable,
                        fmt::format("lost the worker at {}: {}", links[index].address, reason)));
  }
}

// The index of the worker's link, which stands.
Result<std::size_t> StreamEngineClient::State::connected_link(WorkerId worker) const {
  if (worker.value == 0 || worker.value > links.size()) {
    return fail(ErrorCode::kNotFound, fmt::format("there is no worker {}", worker.value));
  }
  const std::size_t index = worker.value - 1;
  if (links[index].phase != Phase::kConnected) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("no stream to the worker at {}", links[index].address));
  }
  return index;
}

Status StreamEngineClient::State::ask_experts(WorkerId worker, std::uint32_t rank,
                                              const ExpertMap* map, ExpertSink answer) {
  TRY(const std::size_t index, connected_link(worker));
  wire::ExpertQuery query;
  query.set_number(++last_expert_question);
  query.set_rank(rank);
  if (map != nullptr) encode(*map, *query.mutable_map());
  TRY_STATUS(links[index].stream->send_query(std::move(query)));
  // The answer can't come before this: it is taken on this thread.
  links[index].checker.asked(last_expert_question);
  expert_questions.emplace(last_expert_question, ExpertQuestion{index, std::move(answer)});
  return {};
}

Status StreamEngineClient::State::submit(WorkerId worker, EngineRequest request, Sink sink) {
  TRY(const std::size_t index, connected_link(worker));
  Link& link = links[index];
  if (views[index].draining) {
    return fail(ErrorCode::kUnavailable, fmt::format("the worker at {} is draining", link.address));
  }
  if (link.checker.open() >= options.requests_max) {
    return fail(ErrorCode::kOverloaded, fmt::format("{} requests are open on the worker at {}",
                                                    link.checker.open(), link.address));
  }
  const RequestId id = request.id;
  if (open.contains(id)) {
    return fail(ErrorCode::kConflict, fmt::format("request {} is open already", id.value));
  }
  TRY_STATUS(link.checker.opened(request));
  wire::Submit submit;
  encode_without_prompt(request, submit);
  if (Status sent = link.stream->send(std::move(submit), std::move(request.prompt)); !sent) {
    link.checker.withdrawn(id);
    return sent;
  }
  open.emplace(id, Open{index, std::make_shared<Sink>(std::move(sink)), request.sampling.choices});
  ++views[index].in_flight;
  return {};
}

StreamEngineClient::StreamEngineClient(Clock& clock, Poller& poller, EngineClientOptions options,
                                       std::function<void(const LinkEvent&)> on_link)
    : state_(std::make_unique<State>(clock, poller, std::move(options), std::move(on_link))) {}
StreamEngineClient::~StreamEngineClient() = default;

std::span<const WorkerView> StreamEngineClient::workers() const {
  return state_->views;
}

Status StreamEngineClient::submit(WorkerId worker, EngineRequest request, Sink sink) {
  Status status = state_->submit(worker, std::move(request), std::move(sink));
  if (!status) ++state_->counters.refused;
  return status;
}

Status StreamEngineClient::ask_experts(WorkerId worker, std::uint32_t rank, const ExpertMap* map,
                                       ExpertSink answer) {
  return state_->ask_experts(worker, rank, map, std::move(answer));
}

void StreamEngineClient::cancel(RequestId request) {
  const auto found = state_->open.find(request);
  if (found == state_->open.end() || std::exchange(found->second.cancelled, true)) return;
  if (const auto& stream = state_->links[found->second.link].stream) {
    stream->send_cancel(request.value);
  }
}

void StreamEngineClient::forget(RequestId request) {
  const auto found = state_->open.find(request);
  if (found == state_->open.end()) return;
  cancel(request);
  const std::size_t index = found->second.link;
  state_->links[index].checker.forgotten(request);
  --state_->views[index].in_flight;
  state_->open.erase(found);
}

const EngineClientCounters& StreamEngineClient::counters() const {
  return state_->counters;
}

}  // namespace penstock::control
