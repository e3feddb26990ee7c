#include "tests/sim/sim_engines.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace penstock::simulated {

namespace wire = control::wire;

namespace {

constexpr Duration kSilentMax = std::chrono::seconds(2);
constexpr Duration kConnectMax = std::chrono::seconds(5);
constexpr Duration kBackoffMin = std::chrono::milliseconds(100);
constexpr Duration kBackoffMax = std::chrono::seconds(5);

}  // namespace

SimEngines::SimEngines(testing::VirtualClock& clock, std::size_t places, Find find,
                       std::function<Duration()> latency, std::uint64_t epoch)
    : clock_(clock),
      find_(std::move(find)),
      latency_(std::move(latency)),
      epoch_(epoch),
      jitter_(epoch),
      places_(places),
      views_(places) {
  for (std::size_t i = 0; i < places; ++i) {
    views_[i].description.id = WorkerId(i + 1);
    connect(i);
  }
}

SimEngines::~SimEngines() {
  for (Place& place : places_) {
    if (place.timer != 0) clock_.cancel(place.timer);
    if (place.link) place.link->close(Side::kGateway);
  }
}

void SimEngines::arm(std::size_t index, Instant when) {
  Place& place = places_[index];
  if (place.timer != 0) clock_.cancel(place.timer);
  place.timer = clock_.call_at(when, [this, index] {
    places_[index].timer = 0;
    on_timer(index);
  });
}

void SimEngines::connect(std::size_t index) {
  Place& place = places_[index];
  place.checker = {};
  place.phase = Phase::kConnecting;
  place.opened_at = clock_.now();
  arm(index, clock_.now() + kConnectMax);
  const std::shared_ptr<SimWorker> worker = find_(index);
  if (worker == nullptr) {
    clock_.call_at(clock_.now() + latency_(), [this, index, opened = place.opened_at] {
      const Place& now = places_[index];
      if (now.phase == Phase::kConnecting && now.opened_at == opened)
        drop(index, "connection refused");
    });
    return;
  }
  const std::weak_ptr<SimWorker> weak = place.worker = worker;
  ControlLink::End gateway;
  gateway.run = [](const std::function<void()>& call) { call(); };
  gateway.ended = [this, index] { drop(index, "the stream ended"); };
  auto link = std::make_shared<std::weak_ptr<ControlLink>>();
  ControlLink::End at_worker;
  at_worker.run = [weak](std::function<void()> call) {
    if (const auto w = weak.lock(); w != nullptr && !w->dead())
      w->transport().clock().post(std::move(call));
  };
  at_worker.ended = [weak, link] {
    const auto w = weak.lock();
    const auto l = link->lock();
    if (w != nullptr && l != nullptr) w->on_end(*l);
  };
  place.link =
      std::make_shared<ControlLink>(clock_, latency_, std::move(gateway), std::move(at_worker));
  *link = place.link;
  // Over a link that has ended nothing arrives, so `this` lives.
  auto receive = [this, index](const wire::WorkerFrame& frame) { on_frame(index, frame); };
  place.link->send(Side::kGateway, [weak, link, receive] {
    const auto w = weak.lock();
    const auto l = link->lock();
    if (w != nullptr && l != nullptr) w->accept(l, receive);
  });
  wire::GatewayFrame hello;
  hello.mutable_hello()->set_gateway_epoch(epoch_);
  hello.mutable_hello()->set_protocol_version(control::kProtocolVersion);
  send(index, std::move(hello));
}

void SimEngines::send(std::size_t index, wire::GatewayFrame frame) {
  const std::weak_ptr<SimWorker> weak = places_[index].worker;
  const std::weak_ptr<ControlLink> link = places_[index].link;
  places_[index].link->send(Side::kGateway, [weak, link, frame = std::move(frame)] {
    const auto w = weak.lock();
    const auto l = link.lock();
    if (w != nullptr && l != nullptr) w->on_frame(*l, frame);
  });
}

void SimEngines::on_timer(std::size_t index) {
  Place& place = places_[index];
  if (place.phase == Phase::kWaiting) return connect(index);
  if (place.phase == Phase::kConnecting) return drop(index, "no hello in time");
  const Instant due = views_[index].heard_at + kSilentMax;
  if (due > clock_.now()) return arm(index, due);
  drop(index, "the worker said nothing");
}

void SimEngines::on_frame(std::size_t index, const wire::WorkerFrame& frame) {
  Place& place = places_[index];
  WorkerView& view = views_[index];
  auto outputs = place.checker.check(frame);
  if (!outputs) {
    violations_.push_back(outputs.error().message);
    return drop(index, outputs.error().message);
  }
  view.heard_at = clock_.now();
  view.draining = place.checker.draining();
  view.handoffs = place.checker.handoffs();
  view.loads = place.checker.loads();
  if (place.phase == Phase::kConnecting) {
    place.phase = Phase::kConnected;
    const WorkerId id = view.description.id;
    view.description = place.checker.description();
    view.description.id = id;
    view.connected = true;
    arm(index, view.heard_at + kSilentMax);
  }
  for (EngineOutput& output : *outputs)
    deliver(std::move(output));
}

void SimEngines::deliver(EngineOutput output) {
  const auto found = open_.find(output.request);
  if (found == open_.end()) return;
  const std::shared_ptr<Sink> sink = found->second.sink;
  if (output.finish && (output.error || --found->second.unfinished == 0)) {
    --views_[found->second.place].in_flight;
    open_.erase(found);
  }
  (*sink)(std::move(output));
}

void SimEngines::drop(std::size_t index, const std::string& reason) {
  Place& place = places_[index];
  WorkerView& view = views_[index];
  if (place.link) place.link->close(Side::kGateway);
  place.link.reset();
  place.phase = Phase::kWaiting;
  view.connected = false;
  view.draining = false;
  view.loads.clear();
  const Instant now = clock_.now();
  if (now - place.opened_at > kBackoffMax) place.backoff = Duration::zero();
  place.backoff = std::clamp(place.backoff * 2, kBackoffMin, kBackoffMax);
  arm(index, now + place.backoff / 2 +
                 Duration(static_cast<Duration::rep>(
                     jitter_.below(static_cast<std::uint64_t>(place.backoff.count()) / 2))));
  std::vector<RequestId> lost;
  for (const auto& [request, entry] : open_)
    if (entry.place == index) lost.push_back(request);
  for (const RequestId request : lost) {
    EngineOutput output;
    output.request = request;
    output.finish = FinishReason::kError;
    output.error = Error{ErrorCode::kUnavailable, "lost the worker: " + reason, {}, {}};
    deliver(std::move(output));
  }
}

void SimEngines::crash() {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].phase == Phase::kWaiting) continue;
    drop(i, "this gateway crashed");
  }
}

std::size_t SimEngines::unfinished() const {
  std::size_t sum = 0;
  for (const Place& place : places_)
    if (place.phase == Phase::kConnected) sum += place.checker.open();
  return sum;
}

Status SimEngines::submit(WorkerId worker, EngineRequest request, Sink sink) {
  const std::size_t index = worker.value - 1;
  Place& place = places_.at(index);
  if (place.phase != Phase::kConnected)
    return fail(ErrorCode::kUnavailable, "no stream to the worker");
  if (views_[index].draining) return fail(ErrorCode::kUnavailable, "the worker is draining");
  const RequestId id = request.id;
  if (open_.contains(id)) return fail(ErrorCode::kConflict, "the request is open already");
  TRY_STATUS(place.checker.opened(request));
  wire::GatewayFrame frame;
  control::encode(request, *frame.add_submits());
  open_.emplace(id, Open{index, std::make_shared<Sink>(std::move(sink)), request.sampling.choices});
  ++views_[index].in_flight;
  send(index, std::move(frame));
  return {};
}

void SimEngines::cancel(RequestId request) {
  const auto found = open_.find(request);
  if (found == open_.end()) return;
  const std::size_t index = found->second.place;
  if (!places_[index].link) return;
  wire::GatewayFrame frame;
  frame.add_cancels(request.value);
  send(index, std::move(frame));
}

void SimEngines::forget(RequestId request) {
  const auto found = open_.find(request);
  if (found == open_.end()) return;
  cancel(request);
  places_[found->second.place].checker.forgotten(request);
  --views_[found->second.place].in_flight;
  open_.erase(found);
}

}  // namespace penstock::simulated
