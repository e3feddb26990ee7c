#include "io/control/client_stream.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace penstock::control {
namespace {

// Frames kept for their memory, unless a burst has made them large.
constexpr std::size_t kSpareFramesMax = 4;
constexpr int kSpareOutputsMax = 1024;

// A copy: the stream may end inside.
void call(std::function<void()> wake) {
  if (wake) wake();
}

}  // namespace

ClientStream::ClientStream(Clock& clock, Poller& poller, std::string address, wire::Hello hello,
                           ClientStreamLimits limits, std::function<void()> wake)
    : clock_(clock),
      poller_(poller),
      limits_(limits),
      wake_(std::make_shared<std::function<void()>>(std::move(wake))) {
  *frame_.mutable_hello() = std::move(hello);
  connector_ = std::thread([this, wake = wake_, to = std::move(address)] {
    auto connected = FramedSocket::connect(to, closing_);
    connection_.with([&](auto& connection) { connection.emplace(std::move(connected)); });
    clock_.post([wake] { call(*wake); });
  });
}

ClientStream::~ClientStream() {
  close();
  connector_.join();
}

Status ClientStream::send(wire::Submit submit, TokenIds prompt) {
  const std::size_t bytes = submit_bytes(submit, prompt);
  if (bytes > kMessageBytesMax - 1024) {
    return fail(ErrorCode::kPayloadTooLarge,
                fmt::format("the request takes {} bytes on the wire, more than {}", bytes,
                            kMessageBytesMax),
                "messages");
  }
  if (ended_) return fail(ErrorCode::kUnavailable, "the stream to the worker has ended");
  if (send_bytes_ + bytes > limits_.send_bytes_max) {
    return fail(ErrorCode::kOverloaded,
                fmt::format("{} bytes wait to be sent to the worker; retry later", send_bytes_));
  }
  send_bytes_ += bytes;
  submits_.push_back({std::move(submit), std::move(prompt), bytes});
  write();
  return {};
}

void ClientStream::send_cancel(std::uint64_t request) {
  if (ended_) return;  // the end of the stream cancels everything
  cancels_.push_back(request);
  write();
}

Status ClientStream::send_query(wire::ExpertQuery query) {
  if (ended_) return fail(ErrorCode::kUnavailable, "the stream to the worker has ended");
  if (queries_.size() >= limits_.queries_max) {
    return fail(ErrorCode::kOverloaded,
                fmt::format("{} questions about experts wait to be sent", queries_.size()));
  }
  queries_.push_back(std::move(query));
  write();
  return {};
}

std::optional<std::string> ClientStream::take(std::vector<wire::WorkerFrame>& frames) {
  std::erase_if(frames, [](const auto& frame) { return frame.outputs_size() > kSpareOutputsMax; });
  if (frames.size() > kSpareFramesMax) frames.resize(kSpareFramesMax);
  if (!watch_ && !ended_) begin();
  if (watch_ && !ended_) {
    receive(frames);
  } else {
    frames.clear();
  }
  return ended_;
}

void ClientStream::begin() {
  auto connection =
      connection_.with([](auto& known) { return std::exchange(known, std::nullopt); });
  if (!connection) return;
  if (!*connection) return end(connection->error().message);
  socket_ = std::move(**connection);
  watch_ = poller_.watch(socket_.fd());
  write();
}

void ClientStream::receive(std::vector<wire::WorkerFrame>& frames) {
  std::size_t count = 0;
  while (count < limits_.frames_max && !ended_) {
    if (count == frames.size()) frames.emplace_back();
    const auto got = socket_.read_some(frames[count]);
    if (!got) {
      end(got.error().message);
    } else if (*got == FramedSocket::Read::kEnd) {
      end("the worker closed the stream");
    } else if (*got == FramedSocket::Read::kNotYet) {
      break;
    } else if (const std::string& goodbye = frames[count++].goodbye(); !goodbye.empty()) {
      // The last frame may carry outputs, too; they are taken before the end.
      end("the worker ended the stream: " + goodbye.substr(0, kErrorTextMax));
    }
  }
  // There may be more, in our buffer already.
  const bool full = count == limits_.frames_max;
  frames.resize(count);
  if (ended_) return;
  if (full) {
    clock_.post([wake = wake_] { call(*wake); });
  } else if (!std::exchange(waits_to_read_, true)) {
    watch_->when_readable([this] {
      waits_to_read_ = false;
      call(*wake_);
    });
  }
}

void ClientStream::close() {
  closing_ = true;
  *wake_ = nullptr;
  if (watch_) socket_.shutdown();
}

// Moves what is queued into bytes_; false when there is nothing.
bool ClientStream::build_frame() {
  if (submits_.empty() && cancels_.empty() && queries_.empty() && !frame_.has_hello()) return false;
  std::size_t bytes = 0;
  begin_frame(bytes_);
  while (!submits_.empty() &&
         (bytes == 0 || bytes + submits_.front().bytes <= limits_.frame_bytes_max)) {
    bytes += submits_.front().bytes;
    send_bytes_ -= submits_.front().bytes;
    append_submit(submits_.front().submit, submits_.front().prompt, bytes_);
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
  frame_.AppendToString(&bytes_);
  end_frame(bytes_);
  frame_.Clear();
  written_ = 0;
  return true;
}

void ClientStream::write() {
  if (!watch_ || ended_ || waits_to_write_) return;
  while (written_ < bytes_.size() || build_frame()) {
    const auto sent = socket_.write_some(std::string_view(bytes_).substr(written_));
    if (!sent) return socket_.shutdown();  // reading finds the end and says so
    written_ += *sent;
    if (written_ == bytes_.size()) continue;
    waits_to_write_ = true;
    watch_->when_writable([this] {
      waits_to_write_ = false;
      write();
    });
    return;
  }
}

void ClientStream::end(std::string reason) {
  ended_ = std::move(reason);
  if (watch_) socket_.shutdown();
  submits_.clear();
  cancels_.clear();
  queries_.clear();
  send_bytes_ = 0;
}

}  // namespace penstock::control
