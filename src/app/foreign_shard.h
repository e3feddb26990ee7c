// ForeignShard: one gateway thread's engines of others: connections, probes, relays.
// Concurrency: shard thread only, but make(). Errors: make() is called with checked options; a key
// file that has gone since is a bug of the caller's order and is logged.
#pragma once

#include <memory>

#include "app/options.h"
#include "io/http/asio_clock.h"
#include "service/foreign/foreign_gateway.h"

namespace penstock {

class ForeignShard {
 public:
  // Null when the engine is one of this program. `tells`: this one logs what becomes of engines.
  static std::unique_ptr<ForeignShard> make(http::AsioClock& clock, const Options& options,
                                            bool tells);

  void start() { engines_.start(); }
  Task<void> stopped();
  bool all_probed() const { return engines_.all_probed(); }
  gateway::ForeignEngines& gateway() { return gateway_; }

 private:
  ForeignShard(http::AsioClock& clock, const Options& options, bool tells);

  http::AsioClock& clock_;
  foreign::EngineSet engines_;
  foreign::ForeignGateway gateway_;
};

}  // namespace penstock
