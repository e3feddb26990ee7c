// ClientStream: one attempt at a stream to one worker, from connecting to its end.
//
// A reading thread connects, then receives frames into an inbox until the shard takes them, woken
// once per batch; a full inbox stops reading, and the worker then merges. Sends are queued and
// travel in one GatewayFrame per write, from the shard's thread when the socket takes it at once;
// what it does not take is left to a writing thread.
//
// Invariants: one write at a time; cancels never overtake submits; after close() returns, `wake` is
// not called again.
// Limits: bytes queued to send, frames in the inbox, 32 MiB a message.
// Errors: send() fails with kUnavailable after the end, kOverloaded when the queue is full,
// kPayloadTooLarge for a request that no message holds.
// Concurrency: public functions from the shard's thread; the destructor joins both threads, which
// close() has woken. One mutex.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "io/control/engine_codec.h"
#include "io/control/framed_socket.h"

namespace penstock::control {

struct ClientStreamLimits {
  std::size_t send_bytes_max = std::size_t{64} << 20;
  std::size_t frame_bytes_max = std::size_t{16} << 20;  // of submits merged into one frame
  std::size_t inbox_frames_max = 64;
  std::size_t queries_max = 256;  // about experts, waiting to be sent
};

class ClientStream {
 public:
  // Starts connecting, and sends the hello when it has. `wake` is called on the reading thread,
  // under the stream's lock, when take() has news.
  ClientStream(std::string address, wire::Hello hello, ClientStreamLimits limits,
               std::function<void()> wake);
  ~ClientStream();
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  Status send(wire::Submit submit);
  void send_cancel(std::uint64_t request);
  // Fails like send().
  Status send_query(wire::ExpertQuery query);
  // Swaps the received frames for those that the caller has done with, whose memory is used again.
  // A value is why the stream ended, once it has and all is taken.
  std::optional<std::string> take(std::vector<wire::WorkerFrame>& frames);
  // Ends the stream and forgets `wake`.
  void close();

 private:
  void run_reader();
  void run_writer();
  std::string receive();  // until the end; returns why

  // With the mutex held.
  void write_if_idle();
  bool build_frame();
  void wake_shard();
  void end(std::string reason);

  const std::string address_;
  const ClientStreamLimits limits_;
  std::atomic<bool> closing_ = false;
  FramedSocket socket_;  // set by the reading thread before connected_

  std::mutex mutex_;
  std::condition_variable changed_;  // taken, remainder, ended or closing
  std::function<void()> wake_;
  bool connected_ = false;
  std::optional<std::string> ended_;
  // Sending.
  wire::GatewayFrame frame_;  // holds the hello until it is sent
  std::string bytes_;         // the frame being written
  std::size_t written_ = 0;   // of bytes_
  bool writing_ = false;      // bytes_ has a remainder, which is the writing thread's
  struct Queued {
    wire::Submit submit;
    std::size_t bytes;
  };
  std::deque<Queued> submits_;
  std::vector<std::uint64_t> cancels_;
  std::vector<wire::ExpertQuery> queries_;
  std::size_t send_bytes_ = 0;
  // Receiving.
  std::vector<wire::WorkerFrame> inbox_;
  std::vector<wire::WorkerFrame> spare_;
  bool wake_pending_ = false;

  std::thread reader_;
  std::thread writer_;
};

}  // namespace penstock::control
