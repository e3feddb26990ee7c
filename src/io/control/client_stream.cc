#include "io/control/client_stream.h"

#include <utility>

#include <fmt/format.h>

namespace penstock::control {
namespace {

// Frames kept for their memory, unless a burst has made them large.
constexpr std::size_t kSpareFramesMax = 4;
constexpr int kSpareOutputsMax = 1024;

}  // namespace

ClientStream::ClientStream(std::string address, wire::Hello hello, ClientStreamLimits limits,
                           std::function<void()> wake)
    : address_(std::move(address)), limits_(limits), wake_(std::move(wake)) {
  *frame_.mutable_hello() = std::move(hello);
  reader_ = std::thread([this] { run_reader(); });
  writer_ = std::thread([this] { run_writer(); });
}

ClientStream::~ClientStream() {
  close();
  reader_.join();
  writer_.join();
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
  if (ended_) return fail(ErrorCode::kUnavailable, "the stream to the worker has ended");
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
  if (ended_) return;  // the end of the stream cancels everything
  cancels_.push_back(request);
  write_if_idle();
}

Status ClientStream::send_query(wire::ExpertQuery query) {
  const std::lock_guard lock(mutex_);
  if (ended_) return fail(ErrorCode::kUnavailable, "the stream to the worker has ended");
  if (queries_.size() >= limits_.queries_max) {
    return fail(ErrorCode::kOverloaded,
                fmt::format("{} questions about experts wait to be sent", queries_.size()));
  }
  queries_.push_back(std::move(query));
  write_if_idle();
  return {};
}

std::optional<std::string> ClientStream::take(std::vector<wire::WorkerFrame>& frames) {
  const std::lock_guard lock(mutex_);
  for (wire::WorkerFrame& frame : frames) {
    if (spare_.size() < kSpareFramesMax && frame.outputs_size() <= kSpareOutputsMax)
      spare_.push_back(std::move(frame));
  }
  frames.clear();
  frames.swap(inbox_);
  wake_pending_ = false;
  if (frames.size() >= limits_.inbox_frames_max) changed_.notify_all();
  return ended_;
}

void ClientStream::close() {
  closing_ = true;
  const std::lock_guard lock(mutex_);
  wake_ = nullptr;
  if (connected_) socket_.shutdown();
  changed_.notify_all();
}

// Moves what is queued into bytes_; false when there is nothing.
bool ClientStream::build_frame() {
  if (submits_.empty() && cancels_.empty() && queries_.empty() && !frame_.has_hello()) return false;
  std::size_t bytes = 0;
  while (!submits_.empty() &&
         (bytes == 0 || bytes + submits_.front().bytes <= limits_.frame_bytes_max)) {
    bytes += submits_.front().bytes;
    send_bytes_ -= submits_.front().bytes;
    *frame_.add_submits() = std::move(submits_.front().submit);
    submits_.pop_front();
  }
  // A cancel must not overtake its submit, so cancels wait until no submit does.
  if (submits_.empty()) {
    frame_.mutable_cancels()->Add(cancels_.begin(), cancels_.end());
    cancels_.clear();
  }
  // One a frame, so that maps of many ranks never add up to more than a message holds.
  if (!queries_.empty()) {
    *frame_.add_expert_queries() = std::move(queries_.front());
    queries_.erase(queries_.begin());
  }
  frame_of(frame_, bytes_);
  frame_.Clear();
  written_ = 0;
  return true;
}

void ClientStream::write_if_idle() {
  while (!writing_ && connected_ && !ended_ && build_frame()) {
    const auto sent = socket_.write_some(bytes_);
    if (!sent) {
      socket_.shutdown();  // the reading thread sees the end and says so
      return;
    }
    written_ = *sent;
    if (written_ == bytes_.size()) continue;
    writing_ = true;
    changed_.notify_all();
  }
}

void ClientStream::run_writer() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return writing_ || ended_ || closing_; });
    if (ended_ || closing_) return;
    lock.unlock();  // bytes_ is this thread's while writing_
    const Status sent = socket_.write_all(std::string_view(bytes_).substr(written_));
    lock.lock();
    writing_ = false;
    if (!sent) socket_.shutdown();
    write_if_idle();
  }
}

void ClientStream::wake_shard() {
  if (wake_pending_ || !wake_) return;
  wake_pending_ = true;
  wake_();
}

void ClientStream::end(std::string reason) {
  ended_ = std::move(reason);
  submits_.clear();
  cancels_.clear();
  queries_.clear();
  send_bytes_ = 0;
  wake_shard();
  changed_.notify_all();
}

std::string ClientStream::receive() {
  wire::WorkerFrame frame;
  for (;;) {
    const auto more = socket_.read(frame);
    if (!more) return more.error().message;
    if (!*more) return "the worker closed the stream";
    // The last frame may carry outputs, too; the shard takes them before the end.
    std::string goodbye = frame.goodbye().substr(0, kErrorTextMax);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closing_ || inbox_.size() < limits_.inbox_frames_max; });
    if (closing_) return "closed";
    inbox_.push_back(std::move(frame));
    frame = {};
    if (!spare_.empty()) {
      frame.Swap(&spare_.back());
      spare_.pop_back();
    }
    wake_shard();
    if (!goodbye.empty()) return "the worker ended the stream: " + goodbye;
  }
}

void ClientStream::run_reader() {
  auto connected = FramedSocket::connect(address_, closing_);
  {
    const std::lock_guard lock(mutex_);
    if (!connected || closing_) {
      end(connected ? "closed" : connected.error().message);
      return;
    }
    socket_ = std::move(*connected);
    connected_ = true;
    write_if_idle();
  }
  std::string reason = receive();
  socket_.shutdown();  // also wakes the writing thread
  const std::lock_guard lock(mutex_);
  end(std::move(reason));
}

}  // namespace penstock::control
