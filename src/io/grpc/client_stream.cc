#include "io/grpc/client_stream.h"

#include <climits>
#include <utility>

#include <fmt/format.h>

namespace penstock::control {
namespace {

std::shared_ptr<::grpc::Channel> connect(const std::string& address) {
  ::grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMessageBytesMax));
  arguments.SetMaxSendMessageSize(static_cast<int>(kMessageBytesMax));
  // Workers are reached directly, never through a web proxy named in the environment.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Its own connection, not one shared with the other shards or with an attempt that hangs.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetString(GRPC_ARG_SERVICE_CONFIG, "{}");
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return ::grpc::CreateCustomChannel(address, ::grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

void StreamYard::add() {
  const std::lock_guard lock(mutex_);
  ++streams_;
}

void StreamYard::bury(std::shared_ptr<void> stream) {
  const std::lock_guard lock(mutex_);
  buried_.push_back(std::move(stream));
  if (--streams_ == 0) none_.notify_all();
}

void StreamYard::sweep() {
  std::vector<std::shared_ptr<void>> buried;
  const std::lock_guard lock(mutex_);
  buried.swap(buried_);
}

void StreamYard::wait_for_none() {
  {
    std::unique_lock lock(mutex_);
    none_.wait(lock, [&] { return streams_ == 0; });
  }
  sweep();
}

ClientStream::ClientStream(const std::string& address, ClientStreamLimits limits,
                           std::function<void()> wake, std::shared_ptr<StreamYard> yard)
    : limits_(limits),
      yard_(std::move(yard)),
      channel_(connect(address)),
      stub_(wire::Engine::NewStub(channel_)),
      wake_(std::move(wake)) {
  yard_->add();
}

std::shared_ptr<ClientStream> ClientStream::open(const std::string& address,
                                                 const wire::Hello& hello,
                                                 ClientStreamLimits limits,
                                                 std::function<void()> wake,
                                                 std::shared_ptr<StreamYard> yard) {
  std::shared_ptr<ClientStream> stream(
      new ClientStream(address, limits, std::move(wake), std::move(yard)));
  const std::lock_guard lock(stream->mutex_);
  stream->self_ = stream;
  stream->stub_->async()->Serve(&stream->context_, stream.get());
  *stream->writing_frame_.mutable_hello() = hello;
  stream->writing_ = true;
  stream->holding_ = true;
  stream->AddHold();
  stream->StartWrite(&stream->writing_frame_);
  stream->StartRead(&stream->reading_frame_);
  stream->StartCall();
  return stream;
}

Status ClientStream::send(wire::Submit submit) {
  const std::size_t bytes = submit.ByteSizeLong() + 16;
  if (bytes > kMessageBytesMax - 1024) {
    return fail(ErrorCode::kPayloadTooLarge,
                fmt::format("the request takes {} bytes on the wire, more than {}", bytes,
                            kMessageBytesMax),
                "messages");
  }
  const std::lock_guard lock(mutex_);
  if (!holding_) return fail(ErrorCode::kUnavailable, "the stream to the worker has ended");
  if (send_bytes_ + bytes > limits_.send_bytes_max) {
    return fail(ErrorCode::kOverloaded,
                fmt::format("{} bytes wait to be sent to the worker; retry later", send_bytes_));
  }
  send_bytes_ += bytes;
  submits_.push_back({std::move(submit), bytes});
  write_if_idle();
  return {};
}

void ClientStream::send_cancel(std::uint64_t request) {
  const std::lock_guard lock(mutex_);
  if (!holding_) return;  // the end of the stream cancels everything
  cancels_.push_back(request);
  write_if_idle();
}

// The lock is held over StartWrite: releasing the hold between the decision to write and the write
// would let gRPC end the call under it.
void ClientStream::write_if_idle() {
  if (writing_ || !holding_ || (submits_.empty() && cancels_.empty())) return;
  writing_frame_.Clear();
  std::size_t bytes = 0;
  while (!submits_.empty() &&
         (bytes == 0 || bytes + submits_.front().bytes <= limits_.frame_bytes_max)) {
    bytes += submits_.front().bytes;
    send_bytes_ -= submits_.front().bytes;
    *writing_frame_.add_submits() = std::move(submits_.front().submit);
    submits_.pop_front();
  }
  // A cancel must not overtake its submit, so cancels wait until no submit does.
  if (submits_.empty()) {
    writing_frame_.mutable_cancels()->Add(cancels_.begin(), cancels_.end());
    cancels_.clear();
  }
  writing_ = true;
  StartWrite(&writing_frame_);
}

std::optional<std::string> ClientStream::take(std::vector<wire::WorkerFrame>& frames) {
  frames.clear();
  const std::lock_guard lock(mutex_);
  frames.swap(inbox_);
  wake_pending_ = false;
  if (read_paused_ && holding_) {
    read_paused_ = false;
    StartRead(&reading_frame_);
  }
  return ended_;
}

void ClientStream::close() {
  const std::lock_guard lock(mutex_);
  wake_ = nullptr;
  context_.TryCancel();
  release_hold();
}

void ClientStream::release_hold() {
  if (!holding_) return;
  holding_ = false;
  submits_.clear();
  cancels_.clear();
  send_bytes_ = 0;
  RemoveHold();
}

void ClientStream::wake_shard() {
  if (wake_pending_ || !wake_) return;
  wake_pending_ = true;
  wake_();
}

void ClientStream::OnReadDone(bool ok) {
  const std::lock_guard lock(mutex_);
  if (!ok) {
    release_hold();  // gRPC says why in OnDone
    return;
  }
  inbox_.push_back(std::move(reading_frame_));
  reading_frame_ = {};
  if (inbox_.size() < limits_.inbox_frames_max) {
    StartRead(&reading_frame_);
  } else {
    read_paused_ = true;
  }
  wake_shard();
}

void ClientStream::OnWriteDone(bool ok) {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  if (ok) write_if_idle();  // a failed write is followed by a failed read
}

void ClientStream::OnDone(const ::grpc::Status& status) {
  std::shared_ptr<StreamYard> yard = yard_;
  std::shared_ptr<ClientStream> self;
  {
    const std::lock_guard lock(mutex_);
    self = std::move(self_);
    ended_ = status.ok() ? "the worker ended the stream"
                         : fmt::format("{} (gRPC status {})", status.error_message(),
                                       static_cast<int>(status.error_code()));
    wake_shard();
  }
  yard->bury(std::move(self));
}

}  // namespace penstock::control
