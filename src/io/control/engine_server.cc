#include "io/control/engine_server.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "io/control/framed_socket.h"
#include "io/control/server_stream.h"

namespace penstock::control {
namespace {

constexpr auto kAcceptRetry = std::chrono::milliseconds(100);

Instant monotonic_now() {
  return Instant(
      std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

service::StreamOutput refusal(service::StreamId stream, std::uint64_t request, Error error) {
  EngineOutput output;
  output.request = RequestId(request);
  output.finish = FinishReason::kError;
  output.error = std::move(error);
  return {stream, std::move(output), false};
}

}  // namespace

struct EngineServer::State final : public StreamHost {
  State(EngineServerOptions o, std::vector<std::unique_ptr<service::WorkerEngine>> engines);
  ~State() override = default;

  Status listen();
  void run_heartbeat();
  void beat();
  void stop();
  void deliver(std::vector<service::StreamOutput>& outputs);
  void engine_drained();
  std::vector<std::shared_ptr<ServerStream>> streams_now() const;
  std::shared_ptr<ServerStream> find_stream(service::StreamId id) const;

  void run_acceptor();
  void accept(FramedSocket socket);
  void sweep();
  void on_hello(ServerStream& stream, const wire::Hello& hello) override;
  void on_submit(ServerStream& stream, const wire::Submit& submit) override;
  bool on_cancel(ServerStream& stream, RequestId request) override;
  void on_expert_query(ServerStream& stream, const wire::ExpertQuery& query) override;
  void on_ended(ServerStream& stream) override;
  void on_cut_off(ServerStream& stream, const std::string& reason) override;
  void on_done(ServerStream& stream) override;
  void on_frame() override {
    frames.fetch_add(1, std::memory_order_relaxed);
    if (options.on_frame) options.on_frame();
  }
  bool draining() const override { return is_draining.load(); }
  std::optional<HandoffUse> handoffs() const override {
    return options.handoffs ? std::optional(options.handoffs()) : std::nullopt;
  }
  Instant now() const override { return options.now ? options.now() : monotonic_now(); }

  struct Entry {
    std::shared_ptr<ServerStream> stream;
    bool ended = false;  // its requests were dropped; its threads still run
    std::pair<std::uint64_t, std::uint32_t> gateway{};
  };

  const EngineServerOptions options;
  WorkerDescription description;
  LoadBoard board;
  std::vector<std::unique_ptr<EngineThread>> engines;
  std::optional<Listener> listener;

  mutable std::mutex mutex;  // of what follows; taken before mailboxes, never with a stream's
  std::map<service::StreamId, Entry> streams;
  std::map<std::pair<std::uint64_t, std::uint32_t>, service::StreamId> by_gateway;
  std::vector<std::shared_ptr<ServerStream>> done;  // to be joined by sweep()
  std::uint64_t last_stream = 0;
  EngineServerCounters counters;
  std::function<void()> when_empty;
  std::size_t engines_drained = 0;

  std::atomic<std::uint64_t> frames = 0;
  std::atomic<bool> is_draining = false;
  std::condition_variable beat_wake;
  std::condition_variable streams_gone;
  bool stopping = false;
  std::thread heartbeat;
  std::thread acceptor;
};

EngineServer::State::State(EngineServerOptions o,
                           std::vector<std::unique_ptr<service::WorkerEngine>> engine_list)
    : options(std::move(o)), board(engine_list.size()) {
  description.epoch = options.epoch;
  description.name = options.name;
  description.engine = options.engine;
  description.role = options.role;
  description.zone = options.zone;
  description.step_group = options.step_group;
  description.transport = options.transport;
  for (std::size_t rank = 0; rank < engine_list.size(); ++rank) {
    const ModelDescription& model = engine_list[rank]->description();
    const auto known = std::ranges::find(description.models, model.name, &ModelDescription::name);
    EngineLoad load = engine_list[rank]->load();
    load.step = 0;
    load.model = static_cast<std::uint32_t>(known - description.models.begin());
    if (known == description.models.end()) description.models.push_back(model);
    board.publish(rank, load, engine_list[rank]->expert_use());
    engines.push_back(std::make_unique<EngineThread>(
        std::move(engine_list[rank]), options.worker, options.mailbox, rank, load.model, board,
        [this](std::vector<service::StreamOutput>& outputs) { deliver(outputs); },
        [this] { engine_drained(); }));
  }
}

Status EngineServer::State::listen() {
  TRY(listener, Listener::open(options.listen));
  for (auto& engine : engines)
    engine->start();
  heartbeat = std::thread([this] { run_heartbeat(); });
  acceptor = std::thread([this] { run_acceptor(); });
  return {};
}

void EngineServer::State::run_acceptor() {
  for (;;) {
    auto socket = listener->accept();
    if (socket) {
      accept(std::move(*socket));
      continue;
    }
    // Out of descriptors, or told to stop: wait a little before the next try.
    std::unique_lock lock(mutex);
    if (beat_wake.wait_for(lock, kAcceptRetry, [this] { return stopping; })) return;
  }
}

void EngineServer::State::accept(FramedSocket socket) {
  std::shared_ptr<ServerStream> stream;
  {
    const std::lock_guard lock(mutex);
    if (stopping || streams.size() >= options.streams_max) {
      ++counters.streams_refused;
      wire::WorkerFrame frame;
      encode(description, *frame.mutable_hello());
      frame.set_goodbye(stopping ? "the worker is shutting down" : "too many streams");
      std::string bytes;
      frame_of(frame, bytes);
      (void)socket.write_some(bytes);  // a courtesy; the end says the rest
      return;
    }
    ++counters.streams_opened;
    const service::StreamId id(++last_stream);
    stream = std::make_shared<ServerStream>(
        std::move(socket), id, description,
        ServerStreamLimits{options.pending_bytes_max, options.stall_max}, board, *this);
    streams.emplace(id, Entry{stream, false, {}});
  }
  stream->start();
}

void EngineServer::State::sweep() {
  std::vector<std::shared_ptr<ServerStream>> gone;
  const std::lock_guard lock(mutex);
  gone.swap(done);
}

void EngineServer::State::run_heartbeat() {
  std::unique_lock lock(mutex);
  while (!stopping) {
    if (beat_wake.wait_for(lock, options.heartbeat, [this] { return stopping; })) return;
    lock.unlock();
    beat();
    sweep();
    lock.lock();
  }
}

std::vector<std::shared_ptr<ServerStream>> EngineServer::State::streams_now() const {
  std::vector<std::shared_ptr<ServerStream>> out;
  const std::lock_guard lock(mutex);
  for (const auto& [id, entry] : streams)
    out.push_back(entry.stream);
  return out;
}

void EngineServer::State::beat() {
  for (const auto& stream : streams_now())
    stream->beat();
}

std::shared_ptr<ServerStream> EngineServer::State::find_stream(service::StreamId id) const {
  const std::lock_guard lock(mutex);
  const auto found = streams.find(id);
  return found == streams.end() ? nullptr : found->second.stream;
}

void EngineServer::State::deliver(std::vector<service::StreamOutput>& outputs) {
  const auto send = [this](service::StreamId id, std::span<const service::StreamOutput> group) {
    if (const auto stream = find_stream(id)) stream->send(group);
  };
  const service::StreamId first = outputs.front().stream;
  if (std::ranges::all_of(outputs, [&](const auto& o) { return o.stream == first; })) {
    send(first, outputs);
    return;
  }
  std::map<service::StreamId, std::vector<service::StreamOutput>> groups;
  for (service::StreamOutput& output : outputs)
    groups[output.stream].push_back(std::move(output));
  for (const auto& [id, group] : groups)
    send(id, group);
}

void EngineServer::State::engine_drained() {
  std::function<void()> call;
  {
    const std::lock_guard lock(mutex);
    if (++engines_drained == engines.size()) call = std::move(when_empty);
  }
  if (call) call();
}

void EngineServer::State::on_hello(ServerStream& stream, const wire::Hello& hello) {
  std::shared_ptr<ServerStream> stale;
  {
    const std::lock_guard lock(mutex);
    const auto found = streams.find(stream.id());
    if (found == streams.end() || found->second.ended) return;
    found->second.gateway = {hello.gateway_epoch(), hello.shard()};
    const auto [place, is_new] = by_gateway.try_emplace(found->second.gateway, stream.id());
    if (!is_new) {
      if (const auto old = streams.find(place->second); old != streams.end()) {
        stale = old->second.stream;
      }
      place->second = stream.id();
    }
  }
  if (!stale) return;
  on_ended(*stale);
  stale->finish("the gateway shard opened a newer stream");
}

void EngineServer::State::on_submit(ServerStream& stream, const wire::Submit& submit) {
  Result<EngineRequest> request = decode(submit);
  Status status;
  if (!request) {
    status = std::unexpected(std::move(request).error());
  } else {
    const std::lock_guard lock(mutex);
    const auto found = streams.find(stream.id());
    if (found == streams.end() || found->second.ended) return;  // a submit after its drop
    ++counters.submits;
    if (is_draining) {
      status = fail(ErrorCode::kUnavailable, "the worker is draining; place it elsewhere");
    } else if (submit.rank() >= engines.size() ||
               engines[submit.rank()]->description().name != submit.model()) {
      status = fail(ErrorCode::kModelNotFound,
                    fmt::format("rank {} of worker {} does not serve model {}", submit.rank(),
                                options.name, submit.model()),
                    "model");
    } else {
      status = engines[submit.rank()]->post_submit({stream.id(), std::move(*request)});
    }
    if (!status) ++counters.refused;
  }
  if (status) return;
  const auto output = refusal(stream.id(), submit.request_id(), std::move(status).error());
  stream.send(std::span(&output, 1));
}

bool EngineServer::State::on_cancel(ServerStream& stream, RequestId request) {
  // Only one engine knows the number; the others ignore it.
  return std::ranges::all_of(
      engines, [&](const auto& engine) { return engine->post_cancel({stream.id(), request}); });
}

void EngineServer::State::on_expert_query(ServerStream& stream, const wire::ExpertQuery& query) {
  const auto answer = [number = query.number()](Result<ExpertReport> report) {
    wire::ExpertAnswer out;
    out.set_number(number);
    encode(report, out);
    return out;
  };
  std::optional<ExpertMap> map;
  Status status;
  if (query.rank() >= engines.size()) {
    status = fail(ErrorCode::kNotFound,
                  fmt::format("worker {} has no rank {}", options.name, query.rank()));
  } else if (query.has_map()) {
    auto decoded = decode(query.map());
    if (!decoded) {
      // What is impossible on the wire is impossible for the engine.
      status = fail(ErrorCode::kInvalidArgument, std::move(decoded).error().message);
    } else if (decoded->worker != options.epoch) {
      status =
          fail(ErrorCode::kConflict,
               fmt::format("the expert map was made for another run of worker {}", options.name));
    } else {
      map = std::move(*decoded);
    }
  }
  if (status) {
    // The stream may be gone by the time of the answer.
    status = engines[query.rank()]->post_experts(
        {std::move(map), [this, id = stream.id(), answer](Result<ExpertReport> report) {
           if (const auto to = find_stream(id)) to->answer(answer(std::move(report)));
         }});
  }
  if (!status) stream.answer(answer(std::unexpected(std::move(status).error())));
}

void EngineServer::State::on_ended(ServerStream& stream) {
  const std::lock_guard lock(mutex);
  const auto found = streams.find(stream.id());
  if (found == streams.end() || found->second.ended) return;
  found->second.ended = true;
  if (const auto named = by_gateway.find(found->second.gateway);
      named != by_gateway.end() && named->second == stream.id()) {
    by_gateway.erase(named);
  }
  for (const auto& engine : engines)
    engine->post_drop(stream.id());
}

void EngineServer::State::on_cut_off(ServerStream&, const std::string&) {
  const std::lock_guard lock(mutex);
  ++counters.cut_offs;
}

void EngineServer::State::on_done(ServerStream& stream) {
  const std::lock_guard lock(mutex);
  if (const auto found = streams.find(stream.id()); found != streams.end()) {
    done.push_back(std::move(found->second.stream));
    streams.erase(found);
  }
  if (streams.empty()) streams_gone.notify_all();
}

void EngineServer::State::stop() {
  {
    const std::lock_guard lock(mutex);
    if (std::exchange(stopping, true)) return;
    beat_wake.notify_all();
  }
  if (listener) listener->stop();
  if (heartbeat.joinable()) heartbeat.join();
  if (acceptor.joinable()) acceptor.join();
  for (const auto& stream : streams_now())
    stream->finish("the worker is shutting down");
  const auto none = [this] { return streams.empty(); };
  std::unique_lock lock(mutex);
  if (!streams_gone.wait_for(lock, options.shutdown_max, none)) {
    lock.unlock();
    for (const auto& stream : streams_now())
      stream->cut_off("the worker is shutting down");
    lock.lock();
    streams_gone.wait(lock, none);
  }
  lock.unlock();
  sweep();
  for (const auto& engine : engines)
    engine->stop();
  listener.reset();
}

EngineServer::EngineServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

EngineServer::~EngineServer() {
  stop();
}

Result<std::unique_ptr<EngineServer>> EngineServer::start(
    EngineServerOptions options, std::vector<std::unique_ptr<service::WorkerEngine>> engines) {
  if (engines.empty()) return fail(ErrorCode::kInvalidArgument, "a worker needs an engine");
  if (engines.size() > kRanksMax) return fail(ErrorCode::kInvalidArgument, "too many engines");
  std::map<std::string, KvIdentity> identities;
  for (const auto& engine : engines) {
    const std::string& name = engine->description().name;
    if (name.empty() || name.size() > kErrorTextMax || clean_utf8(name, name.size()) != name) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("\"{}\" is no model name: it must be UTF-8, 1 to {} bytes",
                              clean_utf8(name, 100), kErrorTextMax));
    }
    const KvIdentity& kv = engine->description().kv;
    if (identities.emplace(name, kv).first->second != kv) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("two ranks serve different models under the name {}", name));
    }
  }
  auto state = std::make_unique<State>(std::move(options), std::move(engines));
  TRY_STATUS(state->listen());
  return std::unique_ptr<EngineServer>(new EngineServer(std::move(state)));
}

const std::string& EngineServer::address() const {
  return state_->listener->address();
}

void EngineServer::drain(std::function<void()> when_empty) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->is_draining.exchange(true)) return;
    state_->when_empty = std::move(when_empty);
  }
  for (const auto& engine : state_->engines)
    engine->post_drain();
  beat();
}

void EngineServer::beat() {
  state_->beat();
}

void EngineServer::stop() {
  state_->stop();
}

EngineServerCounters EngineServer::counters() const {
  const std::lock_guard lock(state_->mutex);
  EngineServerCounters counters = state_->counters;
  counters.streams_open = state_->streams.size();
  counters.frames = state_->frames.load(std::memory_order_relaxed);
  return counters;
}

std::vector<EngineLoad> EngineServer::loads() const {
  return state_->board.snapshot();
}

}  // namespace penstock::control
