#include "io/grpc/server_stream.h"

#include <utility>

#include <fmt/format.h>

namespace penstock::control {

ServerStream::ServerStream(::grpc::CallbackServerContext& context, service::StreamId id,
                           const WorkerDescription& description, ServerStreamLimits limits,
                           const LoadBoard& board, StreamHost& host)
    : id_(id), context_(context), limits_(limits), board_(board), host_(host) {
  encode(description, *pending_.frame().mutable_hello());
}

void ServerStream::start() {
  StartRead(&reading_frame_);
}

void ServerStream::send(std::span<const service::StreamOutput> outputs) {
  bool overflow = false;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    for (const auto& output : outputs)
      pending_.add(output.output, output.has_logprobs);
    overflow = writing_ && pending_.bytes() > limits_.pending_bytes_max;
    if (!overflow) write_or_finish();
  }
  if (overflow) {
    cut_off(fmt::format("the gateway reads too slowly: more than {} bytes pending",
                        limits_.pending_bytes_max));
  }
}

void ServerStream::beat() {
  bool stalled = false;
  {
    const std::lock_guard lock(mutex_);
    stalled = writing_ && !broken_ && host_.now() - write_started_at_ > limits_.stall_max;
    if (!stalled && !closing_) {
      pending_.touch();
      write_or_finish();
    }
  }
  if (stalled) cut_off("the gateway has not taken a frame for too long");
}

void ServerStream::finish(::grpc::Status status) {
  const std::lock_guard lock(mutex_);
  if (closing_) return;
  closing_ = true;
  status_ = std::move(status);
  write_or_finish();
}

void ServerStream::cut_off(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (broken_ || finished_) return;
    closing_ = broken_ = true;
    status_ = {::grpc::StatusCode::RESOURCE_EXHAUSTED, reason};
    context_.TryCancel();
    write_or_finish();
  }
  host_.on_cut_off(*this, reason);
}

// The lock is held over StartWrite and Finish, so that no write can start after Finish.
void ServerStream::write_or_finish() {
  if (writing_ || finished_) return;
  if (pending_.due() && !broken_ && ready_) {
    wire::WorkerFrame& frame = pending_.frame();
    frame.set_draining(host_.draining());
    board_.visit([&](const std::vector<EngineLoad>& loads) {
      std::uint64_t steps = 0;
      for (std::uint32_t rank = 0; rank < loads.size(); ++rank) {
        encode(loads[rank], rank, *frame.add_loads());
        steps += loads[rank].step;
      }
      frame.set_step(steps);
    });
    pending_.take(writing_frame_);
    writing_ = true;
    write_started_at_ = host_.now();
    StartWrite(&writing_frame_);
    return;
  }
  if (closing_) {
    finished_ = true;
    Finish(status_);
  }
}

bool ServerStream::handle(const wire::GatewayFrame& frame, std::string& reason) {
  if (frame.has_hello() == greeted_) {
    reason = greeted_ ? "a second hello" : "the first frame has no hello";
    return false;
  }
  if (!greeted_ && !greet(frame.hello(), reason)) return false;
  for (const wire::Submit& submit : frame.submits())
    host_.on_submit(*this, submit);
  for (const std::uint64_t request : frame.cancels()) {
    if (host_.on_cancel(*this, RequestId(request))) continue;
    reason = "more cancels than requests could be open";
    return false;
  }
  return true;
}

// Answers the gateway's hello with ours, which stands in the pending frame since the beginning.
bool ServerStream::greet(const wire::Hello& hello, std::string& reason) {
  if (hello.protocol_version() != kProtocolVersion) {
    reason = fmt::format("protocol version {}, this worker speaks {}", hello.protocol_version(),
                         kProtocolVersion);
    return false;
  }
  greeted_ = true;
  host_.on_hello(*this, hello);
  const std::lock_guard lock(mutex_);
  ready_ = true;
  pending_.touch();
  write_or_finish();
  return true;
}

void ServerStream::OnReadDone(bool ok) {
  std::string reason;
  if (ok && handle(reading_frame_, reason)) {
    const std::lock_guard lock(mutex_);
    if (!finished_) StartRead(&reading_frame_);
    return;
  }
  end();
  // Without a reason the gateway has gone or half-closed, which means the same here.
  finish(reason.empty() ? ::grpc::Status::OK
                        : ::grpc::Status(::grpc::StatusCode::INVALID_ARGUMENT, reason));
}

void ServerStream::OnWriteDone(bool ok) {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  if (!ok) closing_ = broken_ = true;
  write_or_finish();
}

void ServerStream::OnCancel() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = broken_ = true;
    write_or_finish();
  }
  end();
}

void ServerStream::end() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
  }
  host_.on_ended(*this);
}

void ServerStream::OnDone() {
  end();
  host_.on_done(*this);
}

}  // namespace penstock::control
