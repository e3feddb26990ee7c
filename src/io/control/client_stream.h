// ClientStream: one attempt at a stream to one worker, from connecting to its end.
//
// A thread of its own connects, for names are looked up and hosts may not answer; from then on the
// shard itself reads and writes, when its poller says that it can, so a frame wakes one thread.
// Sends are queued and travel in one GatewayFrame per write, at once when the socket takes it; what
// it does not take goes when it can. Frames wait in the socket until the shard takes them: the
// worker then merges.
//
// Invariants: cancels never overtake submits; `wake` is called while take() has news, later, never
// inside a call, and not after close().
// Limits: bytes queued to send, frames taken at once, 32 MiB a message.
// Errors: send() fails with kUnavailable after the end, kOverloaded when the queue is full,
// kPayloadTooLarge for a request that no message holds.
// Concurrency: the shard's thread; the destructor joins the connecting thread, which close() stops.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/guarded.h"
#include "base/result.h"
#include "io/control/engine_codec.h"
#include "io/control/framed_socket.h"
#include "port/clock.h"
#include "port/poller.h"

namespace penstock::control {

struct ClientStreamLimits {
  std::size_t send_bytes_max = std::size_t{64} << 20;
  std::size_t frame_bytes_max = std::size_t{16} << 20;  // of submits merged into one frame
  std::size_t frames_max = 64;                          // taken at once
  std::size_t queries_max = 256;                        // about experts, waiting to be sent
};

class ClientStream {
 public:
  // Starts connecting, and sends the hello when it has.
  ClientStream(Clock& clock, Poller& poller, std::string address, wire::Hello hello,
               ClientStreamLimits limits, std::function<void()> wake);
  ~ClientStream();
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  // `prompt` is the submit's, which holds none itself.
  Status send(wire::Submit submit, TokenIds prompt);
  void send_cancel(std::uint64_t request);
  // Fails like send().
  Status send_query(wire::ExpertQuery query);
  // Replaces `frames`, which the caller has done with, by those received; their memory is used
  // again. A value is why the stream ended, once it has and all is taken.
  std::optional<std::string> take(std::vector<wire::WorkerFrame>& frames);
  // Ends the stream and forgets `wake`.
  void close();

 private:
  void begin();  // once connected
  void receive(std::vector<wire::WorkerFrame>& frames);
  bool build_frame();
  void write();
  void end(std::string reason);

  Clock& clock_;
  Poller& poller_;
  const ClientStreamLimits limits_;
  // Shared with calls that are posted and may come after the end.
  std::shared_ptr<std::function<void()>> wake_;
  std::atomic<bool> closing_ = false;
  Guarded<std::optional<Result<FramedSocket>>> connection_;  // of the connecting thread
  std::optional<std::string> ended_;
  FramedSocket socket_;
  std::unique_ptr<Watch> watch_;  // of socket_, once connected
  // Sending.
  wire::GatewayFrame frame_;  // holds the hello until it is sent
  std::string bytes_;         // the frame being written
  std::size_t written_ = 0;   // of bytes_
  struct Queued {
    wire::Submit submit;
    TokenIds prompt;
    std::size_t bytes;
  };
  std::deque<Queued> submits_;
  std::vector<std::uint64_t> cancels_;
  std::vector<wire::ExpertQuery> queries_;
  std::size_t send_bytes_ = 0;
  bool waits_to_write_ = false;
  bool waits_to_read_ = false;

  std::thread connector_;
};

}  // namespace penstock::control
