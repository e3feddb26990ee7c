// ServerStream: the worker's end of one gateway shard's stream.
//
// A gRPC callback reactor. Frames from the gateway go to the StreamHost; outputs come in from the
// engines' threads and heartbeats from the server's, and are written at once when no write is under
// way, else merged into the pending frame. A gateway that does not take its frames (too many bytes
// pending, or a write without progress for too long) is cut off.
//
// Invariants: one write at a time; step and loads never fall along the stream, because they are
// read from the board with the stream's lock held; after the host was told that the stream ended,
// nothing more is accepted from the gateway.
// Errors: a gateway that breaks the protocol gets a gRPC status with the reason.
// Concurrency: send(), beat() and finish() from any thread; reactions on gRPC's threads; one mutex,
// taken before the board's and never around a call to the host that could lock.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include <grpcpp/grpcpp.h>

#include "engine.grpc.pb.h"
#include "io/grpc/engine_thread.h"
#include "io/grpc/pending_frame.h"
#include "service/worker/worker_loop.h"

namespace penstock::control {

class ServerStream;

// What a stream needs of its server.
class StreamHost {
 public:
  virtual ~StreamHost() = default;
  // The gateway said hello: an older stream of the same (epoch, shard) is stale.
  virtual void on_hello(ServerStream& stream, const wire::Hello& hello) = 0;
  virtual void on_submit(ServerStream& stream, const wire::Submit& submit) = 0;
  // False when the gateway sends too many.
  virtual bool on_cancel(ServerStream& stream, RequestId request) = 0;
  // Nothing more will come from the gateway; called once.
  virtual void on_ended(ServerStream& stream) = 0;
  virtual void on_cut_off(ServerStream& stream, const std::string& reason) = 0;
  // gRPC is done with the stream; its last owner may let go.
  virtual void on_done(ServerStream& stream) = 0;
  // Both are called with the stream's mutex held and take no lock.
  virtual bool draining() const = 0;
  virtual Instant now() const = 0;
};

struct ServerStreamLimits {
  std::size_t pending_bytes_max = std::size_t{16} << 20;  // below the message limit
  Duration stall_max = std::chrono::seconds(10);
};

class ServerStream final : public ::grpc::ServerBidiReactor<wire::GatewayFrame, wire::WorkerFrame> {
 public:
  ServerStream(::grpc::CallbackServerContext& context, service::StreamId id,
               const WorkerDescription& description, ServerStreamLimits limits,
               const LoadBoard& board, StreamHost& host);

  service::StreamId id() const { return id_; }
  // Starts reading; called once, when the host knows the stream.
  void start();
  // Writes the outputs in a frame of their own, or merges them into the next.
  void send(std::span<const service::StreamOutput> outputs);
  // Writes a frame with the load alone, and cuts the gateway off when it has stalled.
  void beat();
  // Writes what is pending and then ends the stream; later outputs are dropped.
  void finish(::grpc::Status status);
  // Ends the stream at once.
  void cut_off(const std::string& reason);

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  bool handle(const wire::GatewayFrame& frame, std::string& reason);
  bool greet(const wire::Hello& hello, std::string& reason);
  void end();
  // With the mutex held.
  void write_or_finish();

  const service::StreamId id_;
  ::grpc::CallbackServerContext& context_;
  const ServerStreamLimits limits_;
  const LoadBoard& board_;
  StreamHost& host_;

  // Reading: touched by reactions only, which gRPC runs one after another.
  wire::GatewayFrame reading_frame_;
  bool greeted_ = false;

  std::mutex mutex_;
  PendingFrame pending_;
  wire::WorkerFrame writing_frame_;
  bool writing_ = false;
  Instant write_started_at_;
  bool ready_ = false;     // hellos may go out
  bool ended_ = false;     // the host was told
  bool closing_ = false;   // no more outputs are taken
  bool broken_ = false;    // no more writes are started
  bool finished_ = false;  // Finish() was called: nothing may be started
  ::grpc::Status status_;
};

}  // namespace penstock::control
