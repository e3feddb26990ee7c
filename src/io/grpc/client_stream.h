// ClientStream: one attempt at a stream to one worker, from connecting to its end.
//
// A gRPC callback reactor with its own channel (so dropping it drops the connection). Sends are
// queued and travel in one GatewayFrame per write; received frames wait in an inbox until the shard
// takes them, woken once per batch. A full inbox stops reading: the worker then merges.
//
// Invariants: at most one write and one read are under way; after close() returns, `wake` is not
// called again. The object keeps itself alive until gRPC is done with it, and is then
// left in the yard for the shard's thread to destroy.
// Limits: bytes queued to send, frames in the inbox, 32 MiB a message.
// Errors: send() fails with kUnavailable after the end, kOverloaded when the queue is full,
// kPayloadTooLarge for a request that no message holds.
// Concurrency: public functions from the shard's thread; reactions on gRPC's threads; one mutex.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "base/result.h"
#include "engine.grpc.pb.h"
#include "io/grpc/engine_codec.h"

namespace penstock::control {

// The streams that gRPC still holds, and those it is done with. A stream must not die on gRPC's
// thread: with it could go the last channel, whose end joins that very thread.
class StreamYard {
 public:
  void add();
  // gRPC is done with the stream; the caller's reference moves here.
  void bury(std::shared_ptr<void> stream);
  // Destroys the buried; on the shard's thread.
  void sweep();
  // Waits until all are buried, and sweeps.
  void wait_for_none();

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  std::size_t streams_ = 0;
  std::vector<std::shared_ptr<void>> buried_;
};

struct ClientStreamLimits {
  std::size_t send_bytes_max = std::size_t{64} << 20;
  std::size_t frame_bytes_max = std::size_t{16} << 20;  // of submits merged into one frame
  std::size_t inbox_frames_max = 64;
};

class ClientStream final
    : public std::enable_shared_from_this<ClientStream>,
      private ::grpc::ClientBidiReactor<wire::GatewayFrame, wire::WorkerFrame> {
 public:
  // Starts connecting and sends the hello. `wake` is called on a gRPC thread when take() has news.
  static std::shared_ptr<ClientStream> open(const std::string& address, const wire::Hello& hello,
                                            ClientStreamLimits limits, std::function<void()> wake,
                                            std::shared_ptr<StreamYard> yard);
  ~ClientStream() override = default;
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  Status send(wire::Submit submit);
  void send_cancel(std::uint64_t request);
  // Moves the received frames out; a value is why the stream ended, once it has and all is taken.
  std::optional<std::string> take(std::vector<wire::WorkerFrame>& frames);
  // Ends the stream and forgets `wake`.
  void close();

 private:
  ClientStream(const std::string& address, ClientStreamLimits limits, std::function<void()> wake,
               std::shared_ptr<StreamYard> yard);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const ::grpc::Status& status) override;

  // All three with the mutex held.
  void write_if_idle();
  void release_hold();
  void wake_shard();

  const ClientStreamLimits limits_;
  const std::shared_ptr<StreamYard> yard_;
  std::shared_ptr<::grpc::Channel> channel_;
  std::unique_ptr<wire::Engine::Stub> stub_;
  ::grpc::ClientContext context_;
  std::shared_ptr<ClientStream> self_;  // until OnDone

  std::mutex mutex_;
  std::function<void()> wake_;
  bool holding_ = false;  // gRPC waits for us: writes may be started
  // Sending.
  wire::GatewayFrame writing_frame_;
  bool writing_ = false;
  struct Queued {
    wire::Submit submit;
    std::size_t bytes;
  };
  std::deque<Queued> submits_;
  std::vector<std::uint64_t> cancels_;
  std::size_t send_bytes_ = 0;
  // Receiving.
  wire::WorkerFrame reading_frame_;
  std::vector<wire::WorkerFrame> inbox_;
  bool read_paused_ = false;
  bool wake_pending_ = false;
  std::optional<std::string> ended_;
};

}  // namespace penstock::control
