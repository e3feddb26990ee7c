// StreamEngineClient: the EngineClient port over framed sockets, for one gateway shard.
//
// Each worker address has a link that is connecting, connected (the hello came) or waiting to try
// again (100 ms doubling to 5 s, with jitter; reset by a connection that lasted). The shard reads
// frames when its poller tells of them, checks them (FrameChecker), updates the view and calls the
// sinks. A worker that says nothing for 2 s, breaks the protocol or
// ends the stream is dropped: its open requests get one kUnavailable output each and the link tries
// again.
//
// Invariants: as port/engine_client.h. Worker ids are 1 + the place in `workers`. A request number
// may be used again once its request is over on that worker.
// Limits: requests open per worker, bytes queued to send, frames read in one turn.
// Errors: submit() fails with kUnavailable (no stream, draining), kOverloaded (send queue or open
// requests full), kNotFound (no such worker), kModelNotFound, kConflict (number in use),
// kPayloadTooLarge. Concurrency: the shard's thread calls everything; Clock and Poller must outlive
// the client. The destructor joins the streams' threads, and must not run inside a sink.
// Source: design.md section 4; docs/protocol/engine.md; docs/design/0002-control-plane.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "port/clock.h"
#include "port/engine_client.h"
#include "port/poller.h"

namespace penstock::control {

struct EngineClientOptions {
  std::vector<std::string> workers;  // "unix:/path" or "host:port"
  Epoch gateway_epoch;               // drawn by the process
  std::uint32_t shard = 0;
  Duration silent_max = std::chrono::seconds(2);   // without a frame, then dropped
  Duration connect_max = std::chrono::seconds(5);  // from connecting to the hello
  Duration backoff_min = std::chrono::milliseconds(100);
  Duration backoff_max = std::chrono::seconds(5);
  std::size_t requests_max = 4096;  // open per worker, forgotten ones included
  std::size_t send_bytes_max = std::size_t{64} << 20;
  std::size_t frames_max = 64;  // of one stream in a turn of the shard's loop
};

struct EngineClientCounters {
  std::uint64_t frames = 0;
  std::uint64_t outputs = 0;
  std::uint64_t connects = 0;     // hellos received
  std::uint64_t disconnects = 0;  // streams that ended, for whatever reason
  std::uint64_t violations = 0;   // of these: the worker broke the protocol
  std::uint64_t silences = 0;     // of these: the worker said nothing
  std::uint64_t refused = 0;      // submits that failed
};

// A link came up (reason empty) or was dropped; for the log.
struct LinkEvent {
  WorkerId worker;
  std::string address;
  bool connected = false;
  std::string reason;
};

class StreamEngineClient final : public EngineClient {
 public:
  // Starts connecting to all workers.
  StreamEngineClient(Clock& clock, Poller& poller, EngineClientOptions options,
                     std::function<void(const LinkEvent&)> on_link = {});
  ~StreamEngineClient() override;

  std::span<const WorkerView> workers() const override;
  Status submit(WorkerId worker, EngineRequest request, Sink sink) override;
  void cancel(RequestId request) override;
  void forget(RequestId request) override;

  // Asks a rank for its expert loads, after it has applied the map if there is one. `answer` is
  // called once on the shard's thread, never inside: with the report, with the rank's refusal
  // (kConflict: the map is old or foreign; kInvalidArgument: impossible), or with kUnavailable when
  // the stream ends first. Fails as submit() does.
  using ExpertSink = std::function<void(Result<ExpertReport>)>;
  Status ask_experts(WorkerId worker, std::uint32_t rank, const ExpertMap* map, ExpertSink answer);

  const EngineClientCounters& counters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::control
