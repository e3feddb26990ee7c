#include "app/gateway_shard.h"

#include <fmt/format.h>
#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <ctime>
#include <optional>
#include <thread>

#include "app/entropy.h"
#include "app/foreign_shard.h"
#include "app/kv_metrics.h"
#include "app/pools.h"
#include "app/request_reporter.h"
#include "app/server_metrics.h"
#include "base/check.h"
#include "core/handoff/edges.h"
#include "core/routing/cost_model.h"
#include "io/control/engine_client.h"
#include "io/http/asio_clock.h"
#include "io/http/server.h"
#include "io/telemetry/log.h"
#include "service/gateway/answers.h"
#include "service/gateway/gateway.h"
#include "service/gateway/routes.h"

namespace penstock {
namespace {

control::EngineClientOptions client_options(const GatewayShared& shared, std::uint32_t index) {
  control::EngineClientOptions options;
  for (const Assignment& worker : gateway_workers(shared.options))
    options.workers.push_back(worker.value);
  options.gateway_epoch = shared.epoch;
  options.shard = index;
  return options;
}

// Each gateway thread's part of the memory for bodies; a largest body fits in any case.
std::size_t body_memory(const Options& options) {
  const std::int64_t part = options.body_memory_max.value / options.gateway_threads;
  return static_cast<std::size_t>(std::max(part, options.request_body_max.value));
}

// Limits are the gateway's; the shards share them out, rounding up.
std::uint32_t per_shard(std::uint32_t total, const Options& options) {
  const std::uint32_t shards = std::max(1U, options.gateway_threads);
  return (total + shards - 1) / shards;
}

http::ServerOptions server_options(const Options& options, std::uint16_t port) {
  http::ServerOptions out;
  out.address = options.host;
  out.port = port;
  out.reuse_port = options.gateway_threads > 1;
  out.tls_cert_file = options.tls_cert;
  out.tls_key_file = options.tls_key;
  out.limits.header_bytes_max = static_cast<std::size_t>(options.request_headers_max.value);
  out.limits.body_bytes_max = static_cast<std::size_t>(options.request_body_max.value);
  out.limits.body_memory_max = body_memory(options);
  out.limits.connections_max = per_shard(options.connections_max, options);
  out.limits.body_timeout = options.idle_timeout;
  out.limits.idle_timeout = options.idle_timeout;
  out.limits.write_timeout = options.write_timeout;
  return out;
}

// Between looks for stored responses whose time is over.
constexpr std::uint32_t kExpireSeconds = 60;
// Keys of the prompts seen lately, at 272 bytes for 64 tokens.
constexpr std::size_t kChainCacheBytesMax = std::size_t{64} << 20;

gateway::CachePolicy cache_policy(const Options& options, const ApiKeys* keys) {
  gateway::CachePolicy policy;
  policy.enabled = true;
  policy.scope = options.kv_scope == "deployment" ? gateway::CacheScope::kDeployment
                 : options.kv_scope == "user"     ? gateway::CacheScope::kUser
                                                  : gateway::CacheScope::kTenant;
  for (const Assignment& c : options.kv_classes)
    policy.classes.push_back(c.name);
  if (keys != nullptr) policy.key_classes = keys->cache_classes();
  return policy;
}

// A request that the server answered by itself.
RequestRecord refusal_record(const http::RefusedRequest& refused) {
  RequestRecord record;
  record.peer = refused.peer;
  record.method = refused.method;
  record.route = "unparsed";
  record.status = refused.status;
  record.outcome = error_info(refused.code).name;
  record.total = refused.total;
  return record;
}

void log_link(const control::LinkEvent& event) {
  if (event.connected) {
    log_info("worker {} is connected ({})", event.worker.value, event.address);
  } else {
    log_warning("worker {} is gone: {} ({})", event.worker.value, event.reason, event.address);
  }
}

}  // namespace

struct GatewayShard::State {
  State(const GatewayShared& shared_in, std::uint32_t index, std::function<void()> ready)
      : shared(shared_in),
        number(index),
        on_ready(std::move(ready)),
        engines(clock, clock, client_options(shared_in, index),
                index == 0 ? log_link : std::function<void(const control::LinkEvent&)>()),
        encoder(clock, shared_in.encode_pool, draw_secret()),
        reporter(shared_in.metrics, shared_in.access_log),
        server_metrics(shared_in.metrics),
        context{clock,
                engines,
                encoder,
                reporter,
                shared_in.catalog,
                {},
                Rng(draw_u64()),
                [] { return static_cast<std::int64_t>(std::time(nullptr)); },
                {},
                [this] { return metrics_text(); }},
        gateway(context) {
    const Options& options = shared.options;
    context.new_handoff_id = [] { return HandoffId{draw_u64(), draw_u64()}; };
    context.limits.in_flight_max = per_shard(options.in_flight_max, options);
    context.limits.request_time_max = options.request_time_max;
    context.limits.worker_wait_max = options.worker_wait_max;
    context.limits.moves_max = options.moves_max;
    context.limits.keep_alive_interval = options.keep_alive_interval;
    context.limits.placement.local_prefill_max = options.local_prefill_max;
    context.limits.placement.bandwidth_near = static_cast<double>(options.bandwidth_near.value);
    context.limits.placement.bandwidth_far = static_cast<double>(options.bandwidth_far.value);
    context.limits.placement.prefill_backlog = options.prefill_backlog;
    context.limits.placement.step_time_max = options.step_time_max;
    context.limits.admission = {per_shard(options.running_max, options),
                                per_shard(options.queue_max, options),
                                per_shard(options.tenant_queue_max, options),
                                options.queue_time_max, options.first_token_target};
    auto placer = gateway::Placer::make({options.prefill_policy, options.decode_policy});
    ENSURE(placer);  // the option table has these names only
    context.placer = std::move(*placer);
    context.costs = gateway::EngineCosts(shared.engine_seeds);
    context.keep_explanation = [&history = shared.history](gateway::PlacementExplanation e) {
      history.add(std::move(e));
    };
    context.explain = [&history = shared.history](std::string_view id) {
      return history.find_json(id);
    };
    context.is_operator = [&operators = shared.operators](std::string_view token) {
      return operators.holds(token);
    };
    context.responses = shared.responses.store();
    context.response_pool = &shared.responses.pool();
    context.seal_for = [&responses = shared.responses](std::string_view owner) {
      return responses.seal_for(owner);
    };
    if (shared.fleet != nullptr) {
      foreign.emplace(clock, options, *shared.fleet, index == 0);
      foreign->gateway().explain_with(context.keep_explanation);
      gateway.serve_foreign(foreign->gateway());
    }
    if (shared.kv_feed != nullptr) {
      kv_index.emplace(*shared.kv_feed, kChainCacheBytesMax);
      context.kv_index = &*kv_index;
      context.cache = cache_policy(options, shared.keys);
    }
    if (shared.keys != nullptr) {
      for (const auto& [name, share] : shared.keys->shares())
        context.tenants[name] = {share.priority, share.weight};
      context.authenticate = [keys = shared.keys](std::string_view key) {
        const auto name = keys->lookup(key);
        return name ? std::optional(std::string(*name)) : std::nullopt;
      };
    }
  }

  // Gauges of what this shard sees, brought up to date once a second and at each scrape.
  void publish() {
    Metrics& metrics = shared.metrics;
    server_metrics.publish(server->counters());
    if (shared.kv_feed != nullptr && number == 0) publish_kv_metrics(*shared.kv_feed, metrics);
    metrics.gauge(Metric::kAccessLogLinesDropped)
        .set(static_cast<double>(shared.access_log.dropped()));
    metrics.gauge(Metric::kGatewayPermits, {fmt::to_string(number)})
        .set(static_cast<double>(context.ledger.requests()));
    metrics.gauge(Metric::kGatewayQueued, {fmt::to_string(number)})
        .set(static_cast<double>(context.admission.queued()));
    metrics.gauge(Metric::kGatewayRunning, {fmt::to_string(number)})
        .set(static_cast<double>(context.admission.running()));
    if (shared.fleet != nullptr && number == 0) shared.fleet->prefixes().publish(metrics);
    if (number == 0) publish_costs();
    std::vector<std::uint64_t> edges(handoff::edges().size());
    for (const WorkerView& worker : engines.workers()) {
      const std::string id = fmt::to_string(worker.description.id.value);
      metrics.gauge(Metric::kWorkerConnected, {id}).set(worker.connected ? 1 : 0);
      publish_handoffs(id, worker.handoffs, edges);
      for (std::size_t r = 0; r < worker.loads.size(); ++r) {
        const EngineLoad& load = worker.loads[r];
        const std::string rank = fmt::to_string(r);
        metrics.gauge(Metric::kWorkerRequestsRunning, {id, rank}).set(load.running);
        metrics.gauge(Metric::kWorkerRequestsWaiting, {id, rank}).set(load.waiting);
        metrics.gauge(Metric::kWorkerKvTokensUsed, {id, rank})
            .set(static_cast<double>(load.kv_tokens_used.value));
        metrics.gauge(Metric::kWorkerKvTokensCapacity, {id, rank})
            .set(static_cast<double>(load.kv_tokens_total.value));
        metrics.gauge(Metric::kWorkerSteps, {id, rank}).set(static_cast<double>(load.step));
        const CacheUse& cache = load.cache;
        const std::pair<Metric, std::uint64_t> uses[] = {
            {Metric::kWorkerCacheLoads, cache.loads},
            {Metric::kWorkerCacheLoadsOverlapped, cache.loads_overlapped},
            {Metric::kWorkerCacheHitTokens, cache.hit_tokens},
            {Metric::kWorkerCacheOffers, cache.offers},
            {Metric::kWorkerCacheOffersDropped, cache.offers_dropped},
            {Metric::kWorkerCacheScopesRefused, cache.scopes_refused}};
        for (const auto& [metric, amount] : uses)
          metrics.gauge(metric, {id, rank}).set(static_cast<double>(amount));
        if (r >= worker.experts.size()) continue;
        publish_experts(
            id, rank, worker.experts[r],
            context.costs.experts().of({worker.description.id, static_cast<std::uint32_t>(r)}));
      }
    }
    for (std::size_t i = 0; i < edges.size(); ++i) {
      // An edge that was never taken is no line; one that was stays, though its worker began anew.
      if (edges[i] == 0 && !edges_shown[i]) continue;
      edges_shown[i] = true;
      metrics.gauge(Metric::kHandoffEdges, {handoff::name(handoff::edges()[i])})
          .set(static_cast<double>(edges[i]));
    }
  }
  void publish_costs() {
    for (const gateway::EngineCosts::Type& type : context.costs.types()) {
      for (const auto law : {routing::CostLaw::kPrefill, routing::CostLaw::kStep}) {
        const FitError error = type.costs.error(law);
        const std::string_view name = routing::to_string(law);
        Metrics& metrics = shared.metrics;
        metrics.gauge(Metric::kGatewayCostError, {type.engine, type.model, name})
            .set(error.absolute);
        metrics.gauge(Metric::kGatewayCostBias, {type.engine, type.model, name}).set(error.bias);
        metrics.gauge(Metric::kGatewayCostObservations, {type.engine, type.model, name})
            .set(static_cast<double>(error.observations));
      }
    }
  }
  void publish_handoffs(const std::string& worker, const HandoffUse& use,
                        std::vector<std::uint64_t>& edges) {
    const std::pair<Metric, std::uint64_t> amounts[] = {
        {Metric::kHandoffOpen, use.open},
        {Metric::kHandoffBlocksHeld, use.blocks_held},
        {Metric::kHandoffPullsRunning, use.pulls_running},
        {Metric::kHandoffReleased, use.released},
        {Metric::kHandoffExpired, use.expired},
        {Metric::kHandoffWithdrawn, use.withdrawn},
        {Metric::kHandoffPullsDone, use.pulls_done},
        {Metric::kHandoffPullsFailed, use.pulls_failed},
        {Metric::kHandoffBytesPulled, use.bytes_pulled},
        {Metric::kHandoffSlicesCorrupt, use.slices_corrupt}};
    for (const auto& [metric, amount] : amounts)
      shared.metrics.gauge(metric, {worker}).set(static_cast<double>(amount));
    for (std::size_t i = 0; i < std::min(edges.size(), use.edges.size()); ++i)
      edges[i] += use.edges[i];
  }
  void publish_experts(const std::string& worker, const std::string& rank, const ExpertUse& use,
                       std::optional<double> moe_lb) {
    if (use.picks.empty()) return;  // no routed experts
    Metrics& metrics = shared.metrics;
    metrics.gauge(Metric::kWorkerExpertMapVersion, {worker, rank})
        .set(static_cast<double>(use.map_version));
    metrics.gauge(Metric::kWorkerMoeLb, {worker, rank}).set(moe_lb.value_or(0));
    for (std::size_t i = 0; i < use.picks.size(); ++i) {
      const std::string layer = fmt::to_string(use.first_layer + i);
      metrics.gauge(Metric::kWorkerExpertPicks, {worker, rank, layer})
          .set(static_cast<double>(use.picks[i]));
      metrics.gauge(Metric::kWorkerExpertPacedPicks, {worker, rank, layer})
          .set(static_cast<double>(use.paced[i]));
    }
  }
  std::string metrics_text() {
    publish();
    return shared.metrics.exposition();
  }

  Task<void> watch_ready() {
    // Engines of others may be away when we start; /readyz says so.
    while (!stopping && !(foreign ? foreign->all_probed() : gateway.ready()))
      co_await Sleep(clock, std::chrono::milliseconds(10));
    if (!stopping && on_ready) on_ready();
  }
  Task<void> publish_every_second() {
    for (std::uint32_t second = 0; !stopping; ++second) {
      publish();
      if (number == 0 && second % kExpireSeconds == 0)
        shared.responses.expire(context.unix_seconds());
      for (int i = 0; i < 20 && !stopping; ++i) {
        context.costs.watch(engines.workers());
        co_await Sleep(clock, std::chrono::milliseconds(50));
      }
    }
  }
  Task<void> drain_and_tell() {
    stopping = true;
    gateway.begin_drain();
    server->stop();
    co_await server->drained();
    co_await gateway.background_ended();
    if (foreign) co_await foreign->stopped();
    is_drained = true;
  }

  const GatewayShared& shared;
  const std::uint32_t number;
  std::function<void()> on_ready;
  boost::asio::io_context io{1};
  http::AsioClock clock{io};
  control::StreamEngineClient engines;
  gateway::PromptEncoder encoder;
  RequestReporter reporter;
  ServerMetrics server_metrics;
  std::optional<kv::ShardKvIndex> kv_index;
  gateway::GatewayContext context;
  gateway::Gateway gateway;
  std::optional<ForeignShard> foreign;
  std::unique_ptr<http::HttpServer> server;
  Gate gate;
  std::vector<bool> edges_shown = std::vector<bool>(handoff::edges().size());
  bool stopping = false;
  std::atomic<bool> is_drained{false};
  std::thread thread;
};

GatewayShard::GatewayShard(std::unique_ptr<State> state) : state_(std::move(state)) {}

GatewayShard::~GatewayShard() {
  join();
}

Result<std::unique_ptr<GatewayShard>> GatewayShard::start(const GatewayShared& shared,
                                                          std::uint32_t index, std::uint16_t port,
                                                          std::function<void()> on_ready) {
  auto state = std::make_unique<State>(shared, index, std::move(on_ready));
  State* s = state.get();
  http::ServerOptions server = server_options(shared.options, port);
  server.admit_head = [s](const HttpRequest& head) { return s->gateway.refuse_head(head); };
  server.error_response = [s](const Error& error, std::string_view path) {
    RequestRecord record;
    record.request_id = "req-" + gateway::random_name(s->context.rng);
    return gateway::error_response(error, record,
                                   gateway::error_shape_at(path.substr(0, path.find('?'))));
  };
  server.on_refused = [s](const http::RefusedRequest& refused) {
    s->reporter.request_started();
    s->reporter.request_finished(refusal_record(refused));
  };
  TRY(s->server, http::HttpServer::start(s->clock, std::move(server),
                                         [s](std::unique_ptr<HttpExchange> exchange) {
                                           return s->gateway.handle(std::move(exchange));
                                         }));
  s->clock.post([s] {
    if (s->foreign) s->foreign->start();
    s->gate.start(s->watch_ready());
    s->gate.start(s->publish_every_second());
  });
  s->thread = std::thread([s] {
    const auto work = boost::asio::make_work_guard(s->io);
    s->io.run();
  });
  return std::unique_ptr<GatewayShard>(new GatewayShard(std::move(state)));
}

std::uint16_t GatewayShard::port() const {
  return state_->server->port();
}

void GatewayShard::change_engines(const ForeignFleet::Change& change) {
  state_->clock.post([s = state_.get(), change] { s->foreign->change(change); });
}

void GatewayShard::drain() {
  state_->clock.post([s = state_.get()] { s->gate.start(s->drain_and_tell()); });
}

bool GatewayShard::drained() const {
  return state_->is_drained;
}

void GatewayShard::join() {
  State* s = state_.get();
  if (!s->thread.joinable()) return;
  // What still runs ends with an error; the loop stops when the last task has gone.
  s->clock.post([s] {
    if (!s->stopping) s->gate.start(s->drain_and_tell());
    s->gateway.stop_running({ErrorCode::kUnavailable,
                             "the server is shutting down and could not wait any longer",
                             {},
                             {}});
    // Clients that do not even take the error are cut off.
    s->clock.call_at(s->clock.now() + std::chrono::seconds(1), [s] { s->server->cut(); });
  });
  const auto finish = [](State* state) -> Task<void> {
    co_await state->gate.drained();
    state->io.stop();
  };
  Gate last;
  s->clock.post([s, &last, &finish] { last.start(finish(s)); });
  s->thread.join();
}

}  // namespace penstock
