// ServerStream: the worker's end of one gateway shard's stream.
//
// A reading thread hands the gateway's frames to the StreamHost. Outputs come in from the engines'
// threads and heartbeats from the server's; a frame is written at once, on the caller's thread,
// when no write is under way and the socket takes it, else a writing thread sends the rest and
// later steps merge into the pending frame. A gateway that does not take its frames (too many bytes
// pending, or a write without progress for too long) is cut off.
//
// Invariants: one write at a time; step and loads never fall along the stream, because they are
// read from the board with the stream's lock held; after the host was told that the stream ended,
// nothing more is accepted from the gateway.
// Errors: a gateway that breaks the protocol gets a last frame with the reason, and the end.
// Concurrency: send(), beat(), finish() and cut_off() from any thread; one mutex, taken before the
// board's and never around a call to the host that could lock. The destructor joins both threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "io/control/engine_thread.h"
#include "io/control/framed_socket.h"
#include "io/control/pending_frame.h"
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
  virtual void on_expert_query(ServerStream& stream, const wire::ExpertQuery& query) = 0;
  // Nothing more will come from the gateway; called once.
  virtual void on_ended(ServerStream& stream) = 0;
  virtual void on_cut_off(ServerStream& stream, const std::string& reason) = 0;
  // The stream's threads are about to end; from another thread, it may be destroyed.
  virtual void on_done(ServerStream& stream) = 0;
  // These are called with the stream's mutex held and take no lock that is held around a stream's.
  virtual void on_frame() = 0;  // a frame is about to be written
  virtual bool draining() const = 0;
  virtual std::optional<HandoffUse> handoffs() const = 0;
  virtual Instant now() const = 0;
};

struct ServerStreamLimits {
  std::size_t pending_bytes_max = std::size_t{16} << 20;  // below the message limit
  Duration stall_max = std::chrono::seconds(10);
};

class ServerStream {
 public:
  ServerStream(FramedSocket socket, service::StreamId id, const WorkerDescription& description,
               ServerStreamLimits limits, const LoadBoard& board, StreamHost& host);
  ~ServerStream();
  ServerStream(const ServerStream&) = delete;
  ServerStream& operator=(const ServerStream&) = delete;

  service::StreamId id() const { return id_; }
  // Starts reading; called once, when the host knows the stream.
  void start();
  // Writes the outputs in a frame of their own, or merges them into the next.
  void send(std::span<const service::StreamOutput> outputs);
  // Likewise an answer to an expert query.
  void answer(wire::ExpertAnswer answer);
  // Writes a frame with the load alone, and cuts the gateway off when it has stalled.
  void beat();
  // Writes what is pending with `reason`, and then ends the stream; later outputs are dropped.
  void finish(std::string reason);
  // Ends the stream at once.
  void cut_off(const std::string& reason);

 private:
  void run_reader();
  void run_writer();
  bool handle(const wire::GatewayFrame& frame, std::string& reason);
  bool greet(const wire::Hello& hello, std::string& reason);

  // Lets `add` put something into the pending frame, and writes it if that is possible.
  template <typename Add>
  void add_and_write(Add add);
  // With the mutex held.
  void write_if_idle();
  void build_frame();

  const service::StreamId id_;
  const ServerStreamLimits limits_;
  const LoadBoard& board_;
  StreamHost& host_;
  FramedSocket socket_;
  bool greeted_ = false;  // reading thread

  std::mutex mutex_;
  std::condition_variable changed_;  // remainder or broken
  PendingFrame pending_;
  bool beating_ = false;     // the next frame is a heartbeat
  wire::WorkerFrame frame_;  // kept for its memory
  std::string bytes_;        // the frame being written
  std::size_t written_ = 0;  // of bytes_
  bool writing_ = false;     // bytes_ has a remainder, which is the writing thread's
  Instant write_started_at_;
  bool ready_ = false;         // the hellos were exchanged or refused: frames may go out
  bool closing_ = false;       // no more outputs are taken
  bool said_goodbye_ = false;  // the last frame was written
  bool broken_ = false;        // the socket was shut down

  std::thread reader_;
  std::thread writer_;
};

}  // namespace penstock::control
