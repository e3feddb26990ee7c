// GatewayShard: one thread of the gateway process with all that it owns.
//
// One shard = one io_context = one thread: its own listener (the kernel spreads connections over
// the shards' listeners), its own streams to the workers, span cache and random numbers. Shards
// share only what is immutable (catalog, keys) or thread-safe (metrics, access log, encode pool).
//
// Invariants: everything inside is touched on the shard's thread only, but start(), drain() and
// join(). Errors: start() as HttpServer::start. Concurrency: start, drain, join from the main
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "app/foreign_fleet.h"
#include "app/operator_access.h"
#include "app/options.h"
#include "app/placement_history.h"
#include "app/response_keeping.h"
#include "base/result.h"
#include "io/files/api_keys.h"
#include "io/kv/kv_index_feed.h"
#include "io/telemetry/access_log.h"
#include "io/telemetry/metrics.h"
#include "port/compute_pool.h"
#include "service/gateway/engine_costs.h"
#include "service/gateway/model_catalog.h"

namespace penstock {

// What the shards of one process have in common.
struct GatewayShared {
  const Options& options;
  const gateway::ModelCatalog& catalog;
  const ApiKeys* keys = nullptr;  // null: no key is needed
  Metrics& metrics;
  AccessLog& access_log;
  ComputePool& encode_pool;
  Epoch epoch;
  const kv::KvIndexFeed* kv_feed = nullptr;  // null: no KV cache
  const gateway::EngineSeeds& engine_seeds;
  PlacementHistory& history;
  const OperatorAccess& operators;
  ResponseKeeping& responses;
  ForeignFleet* fleet = nullptr;  // null: the engines are of this program
};

class GatewayShard {
 public:
  // Listens on `port` (0: any) and runs the shard's thread. `on_ready` is called once, on the
  // shard's thread, when every model has a worker.
  static Result<std::unique_ptr<GatewayShard>> start(const GatewayShared& shared,
                                                     std::uint32_t index, std::uint16_t port,
                                                     std::function<void()> on_ready);
  ~GatewayShard();
  GatewayShard(const GatewayShard&) = delete;
  GatewayShard& operator=(const GatewayShard&) = delete;

  std::uint16_t port() const;
  // Engines of others come and go.
  void change_engines(const ForeignFleet::Change& change);
  // Stops accepting, lets running requests finish.
  void drain();
  // True when a drain is complete.
  bool drained() const;
  // Ends the thread; cuts what still runs.
  void join();

 private:
  struct State;
  explicit GatewayShard(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock
