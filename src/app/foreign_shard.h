// ForeignShard: one gateway thread's engines of others: connections, probes, relays.
// Concurrency: shard thread only, but the constructor. Errors: none; what it is given was checked.
#pragma once

#include "app/foreign_fleet.h"
#include "app/options.h"
#include "io/http/asio_clock.h"
#include "service/foreign/foreign_gateway.h"

namespace penstock {

class ForeignShard {
 public:
  // `tells`: this one logs what becomes of engines. The fleet outlives it.
  ForeignShard(http::AsioClock& clock, const Options& options, ForeignFleet& fleet, bool tells);

  void start() { engines_.start(); }
  Task<void> stopped();
  bool all_probed() const { return engines_.all_probed(); }
  foreign::ForeignGateway& gateway() { return gateway_; }
  void change(const ForeignFleet::Change& change);

 private:
  void add(const FleetEngine& engine);

  http::AsioClock& clock_;
  foreign::EngineSet engines_;
  foreign::ForeignGateway gateway_;
};

}  // namespace penstock
