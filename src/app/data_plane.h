// DataPlane: the KV data plane of a worker: its transport and the handoffs of all its ranks.
//
// Ranks pull from and are pulled by other workers (docs/protocol/handoff.md). The limits there are
// configuration: `--handoff-limit NAME=VALUE`, names as in its table.
//
// Invariants: engines are detached before they go, and go after the service behind them has ended.
// Errors: open() with what the transport says; handoff_options() with kInvalidArgument naming the
// limit. Concurrency: open(), detach_engines() and the destructor on one thread, the rest from any.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/options.h"
#include "io/embedded/embedded_engine.h"
#include "port/transport.h"
#include "service/handoff/handoff_service.h"

namespace penstock {

// Of options.handoff_lease and options.handoff_limits.
Result<service::HandoffOptions> handoff_options(const Options& options);

class DataPlane {
 public:
  static Result<std::unique_ptr<DataPlane>> open(const Options& options, Epoch epoch,
                                                 std::vector<EmbeddedEngine*> engines,
                                                 const WrapTransport& wrap);
  // Ends the service on its own thread. Engines that still live must have been detached.
  ~DataPlane();
  DataPlane(const DataPlane&) = delete;
  DataPlane& operator=(const DataPlane&) = delete;

  // After the engines have taken their last step.
  void detach_engines();
  std::string address() const { return transport_->address(); }
  // Nobody reads KV here, or will.
  bool idle() const;
  HandoffUse use() const;

 private:
  DataPlane() = default;

  std::unique_ptr<Transport> transport_;
  std::optional<service::HandoffService> handoffs_;
  std::vector<EmbeddedEngine*> engines_;
};

}  // namespace penstock
