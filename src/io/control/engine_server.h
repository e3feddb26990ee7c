// EngineServer: a worker process's side of the control plane: streams in, engines behind.
//
// Listens on a Unix socket or TCP, with one ServerStream per gateway shard, and one
// EngineThread per engine; an engine is one rank and serves one model, several ranks may serve the
// same one, and submits name their rank. A thread of the server's own sends a frame with the load
// to every stream at each heartbeat, whether or not an engine moves.
//
// Invariants: a stream's end cancels its requests at once; streams do not see each other's
// requests; a new stream of the same (gateway epoch, shard) ends the older one.
// Limits: streams, mailboxes, requests open per engine, bytes pending per stream, 32 MiB a message.
// Errors: start() fails with kInvalidArgument (address, model names), kConflict (somebody already
// listens there), kIo (cannot listen). A submit for an unknown model, while draining or beyond a
// limit is answered with an error output.
// Concurrency: public functions from any thread, but stop() and the destructor not from callbacks.
// Threads: one to accept, one for heartbeats, one an engine, two a stream. Source: design.md
// section 4; docs/protocol/engine.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/control/engine_thread.h"
#include "service/worker/worker_engine.h"

namespace penstock::control {

struct EngineServerOptions {
  std::string listen;  // "unix:/path" or "host:port"; port 0 takes a free one
  std::string name;
  std::string engine;  // name and version of the engine, "embedded 0.1.0"
  Epoch epoch;         // drawn by the process
  WorkerRole role = WorkerRole::kMixed;
  std::string zone;
  std::string step_group;  // as in WorkerDescription
  std::string transport;   // address of the KV data plane; empty: none
  Duration heartbeat = std::chrono::milliseconds(200);
  Duration stall_max = std::chrono::seconds(10);          // a write without progress
  Duration shutdown_max = std::chrono::seconds(2);        // for pending frames at stop()
  std::size_t pending_bytes_max = std::size_t{16} << 20;  // a stream's merged frame
  std::size_t streams_max = 1024;
  service::WorkerLimits worker;  // of each engine
  MailboxLimits mailbox;         // of each engine
  std::function<Instant()> now;  // for stall detection; empty = the monotonic clock
  // What heartbeats say of handoffs; called under a stream's lock: may take a lock of its own only.
  std::function<HandoffUse()> handoffs;
  // Called as each frame goes to the wire, under the stream's lock: must not call back or block.
  std::function<void()> on_frame;
};

struct EngineServerCounters {
  std::uint64_t streams_open = 0;
  std::uint64_t streams_opened = 0;
  std::uint64_t streams_refused = 0;
  std::uint64_t cut_offs = 0;
  std::uint64_t frames = 0;
  std::uint64_t submits = 0;
  std::uint64_t refused = 0;  // submits answered by the server itself: model, mailbox, draining
};

class EngineServer {
 public:
  // Listens, and starts the engines' threads.
  static Result<std::unique_ptr<EngineServer>> start(
      EngineServerOptions options, std::vector<std::unique_ptr<service::WorkerEngine>> engines);
  ~EngineServer();
  EngineServer(const EngineServer&) = delete;
  EngineServer& operator=(const EngineServer&) = delete;

  // What gateways connect to: the listen address with the port that was taken.
  const std::string& address() const;
  // Refuses new requests from now on and tells the gateways; `when_empty` is called once, on an
  // engine's thread, when the running ones have finished.
  void drain(std::function<void()> when_empty);
  // Sends one heartbeat to every stream now.
  void beat();
  // Ends all streams, pending frames first, then the engines' threads. Waits for running steps.
  void stop();

  EngineServerCounters counters() const;
  std::vector<EngineLoad> loads() const;

 private:
  struct State;
  explicit EngineServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock::control
