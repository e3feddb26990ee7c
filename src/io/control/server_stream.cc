#include "io/control/server_stream.h"

#include <utility>

#include <fmt/format.h>

namespace penstock::control {

ServerStream::ServerStream(FramedSocket socket, service::StreamId id,
                           const WorkerDescription& description, ServerStreamLimits limits,
                           const LoadBoard& board, StreamHost& host)
    : id_(id), limits_(limits), board_(board), host_(host), socket_(std::move(socket)) {
  encode(description, *pending_.frame().mutable_hello());
}

ServerStream::~ServerStream() {
  if (reader_.joinable()) reader_.join();
  if (writer_.joinable()) writer_.join();
}

void ServerStream::start() {
  writer_ = std::thread([this] { run_writer(); });
  reader_ = std::thread([this] { run_reader(); });
}

template <typename Add>
void ServerStream::add_and_write(Add add) {
  bool overflow = false;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    add();
    overflow = writing_ && pending_.bytes() > limits_.pending_bytes_max;
    if (!overflow) write_if_idle();
  }
  if (overflow) {
    cut_off(fmt::format("the gateway reads too slowly: more than {} bytes pending",
                        limits_.pending_bytes_max));
  }
}

void ServerStream::send(std::span<const service::StreamOutput> outputs) {
  add_and_write([&] {
    for (const auto& output : outputs)
      pending_.add(output.output, output.has_logprobs);
  });
}

void ServerStream::answer(wire::ExpertAnswer answer) {
  add_and_write([&] { pending_.add(std::move(answer)); });
}

void ServerStream::beat() {
  bool stalled = false;
  {
    const std::lock_guard lock(mutex_);
    // A gateway that keeps the stream after our goodbye has stalled, too.
    stalled = (writing_ || said_goodbye_) && !broken_ &&
              host_.now() - write_started_at_ > limits_.stall_max;
    if (!stalled && !closing_) {
      pending_.touch();
      beating_ = true;
      write_if_idle();
    }
  }
  if (stalled) cut_off("the gateway has not taken a frame for too long");
}

void ServerStream::finish(std::string reason) {
  const std::lock_guard lock(mutex_);
  if (closing_) return;
  closing_ = true;
  ready_ = true;  // a refused gateway gets the reason with the hello
  pending_.frame().set_goodbye(reason.empty() ? "end" : std::move(reason));
  pending_.touch();
  write_if_idle();
}

void ServerStream::cut_off(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return;
    closing_ = broken_ = true;
    socket_.shutdown();
    changed_.notify_all();
  }
  host_.on_cut_off(*this, reason);
}

void ServerStream::build_frame() {
  wire::WorkerFrame& frame = pending_.frame();
  frame.set_draining(host_.draining());
  if (std::exchange(beating_, false)) {
    if (const auto use = host_.handoffs()) encode(*use, *frame.mutable_handoffs());
    for (const ExpertUse& use : board_.experts())
      encode(use, *frame.add_experts());
  }
  board_.visit([&](const std::vector<EngineLoad>& loads) {
    std::uint64_t steps = 0;
    for (std::uint32_t rank = 0; rank < loads.size(); ++rank) {
      encode(loads[rank], rank, *frame.add_loads());
      steps += loads[rank].step;
    }
    frame.set_step(steps);
  });
  pending_.take(frame_);
  frame_of(frame_, bytes_);
  written_ = 0;
  host_.on_frame();
}

void ServerStream::write_if_idle() {
  while (!writing_ && !broken_ && ready_ && pending_.due()) {
    build_frame();
    write_started_at_ = host_.now();
    const auto sent = socket_.write_some(bytes_);
    if (!sent) {
      closing_ = broken_ = true;
      socket_.shutdown();
      changed_.notify_all();
      return;
    }
    written_ = *sent;
    if (written_ < bytes_.size()) {
      writing_ = true;
      changed_.notify_all();
    }
  }
  if (closing_ && !writing_ && !broken_ && !std::exchange(said_goodbye_, true)) {
    socket_.shutdown_write();
  }
}

void ServerStream::run_writer() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return writing_ || broken_; });
    if (broken_) return;
    lock.unlock();  // bytes_ is this thread's while writing_
    const Status sent = socket_.write_all(std::string_view(bytes_).substr(written_));
    lock.lock();
    writing_ = false;
    if (!sent) {
      closing_ = broken_ = true;
      socket_.shutdown();
      return;
    }
    write_if_idle();
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
  for (const wire::ExpertQuery& query : frame.expert_queries())
    host_.on_expert_query(*this, query);
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
  write_if_idle();
  return true;
}

void ServerStream::run_reader() {
  std::string reason;
  for (bool going = true; going;) {
    wire::GatewayFrame frame;
    const auto more = socket_.read(frame);
    if (!more) reason = more.error().message;
    going = more && *more && handle(frame, reason);
  }
  // The end of the gateway's half means its end, whether it closed or died.
  host_.on_ended(*this);
  if (!reason.empty()) finish(std::move(reason));
  {
    // Nobody reads any more, so a frame that the socket has not taken at once is lost anyway.
    const std::lock_guard lock(mutex_);
    closing_ = broken_ = true;
    socket_.shutdown();
    changed_.notify_all();
  }
  host_.on_done(*this);
}

}  // namespace penstock::control
