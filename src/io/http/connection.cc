#include "io/http/connection.h"

#include <algorithm>
#include <utility>

namespace penstock::http {
namespace {

using enum ErrorCode;

constexpr std::size_t kReadBytes = 8 << 10;
constexpr Duration kLastWords = std::chrono::seconds(1);  // for a write after the deadline
constexpr std::size_t kBodyReadBytes = 64 << 10;
// A client may send this much ahead of its current answer; then we stop reading.
constexpr std::size_t kPipelineBytes = 64 << 10;
// A refused body is read and dropped up to here, so that the client gets to see why.
constexpr std::size_t kLingerBytes = 64 << 20;
// Room for a body's first bytes; more is taken as they come, so that a head alone claims little.
constexpr std::size_t kBodyRoomBytes = 64 << 10;

}  // namespace

Connection::Connection(std::shared_ptr<HttpServer::Core> core, std::unique_ptr<ByteStream> stream,
                       std::string peer)
    : core_(std::move(core)), stream_(std::move(stream)), peer_(std::move(peer)) {
  core_->connections.insert(this);
  ++core_->counters.connections_now;
}

Connection::~Connection() = default;

void Connection::start(const Error* refused) {
  request_begun_ = core_->clock.now();
  if (refused != nullptr) {
    refuse(*refused);
    return;
  }
  read_deadline(core_->options.limits.header_timeout);
  stream_->handshake(shared_from_this());
}

void Connection::on_handshake(bool ok) {
  if (phase_ == Phase::kClosed) return;
  if (!ok) {
    ++core_->counters.tls_failures;
    close(CloseHow::kOrderly);
    return;
  }
  await_request();
}

// Looks for the next request in what has come already, then in what comes.
void Connection::await_request() {
  phase_ = Phase::kHead;
  scan_ = {};
  request_begun_ = core_->clock.now();
  const auto& limits = core_->options.limits;
  read_deadline(served_ > 0 && in_.empty() ? limits.idle_timeout : limits.header_timeout);
  parse_head();
}

void Connection::read() {
  if (reading_ || phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kHandling && in_.size() >= kPipelineBytes) return;
  if (socket_ != nullptr && socket_->full()) {
    read_deadline_ = Instant::max();
    return;
  }
  // A body of known length is read to where it stays.
  if (phase_ == Phase::kBody && !chunks_) {
    const std::size_t size = request_.body.size();
    if (!make_room(static_cast<std::size_t>(std::min<std::uint64_t>(body_left_, kBodyReadBytes))))
      return refuse_for_memory();
    reading_ = true;
    read_to_ = request_.body.data() + size;
    stream_->read_some(read_to_, std::min<std::size_t>(body_share_.bytes() - size, body_left_),
                       shared_from_this());
    return;
  }
  const bool large =
      (phase_ == Phase::kBody) || (socket_ != nullptr && socket_->held() > kReadBytes);
  const auto size = large ? kBodyReadBytes : kReadBytes;
  if (area_size_ != size) {
    area_ = std::make_unique_for_overwrite<char[]>(size);
    area_size_ = size;
  }
  reading_ = true;
  read_to_ = area_.get();
  stream_->read_some(read_to_, area_size_, shared_from_this());
}

void Connection::on_read(bool ok, std::size_t bytes) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return;
  if (!ok) {
    peer_gone();
    return;
  }
  core_->counters.bytes_in += bytes;
  const std::string_view got(read_to_, bytes);
  switch (phase_) {
    case Phase::kHead:
      if (in_.empty()) {
        request_begun_ = core_->clock.now();
        if (served_ > 0) read_deadline(core_->options.limits.header_timeout);
      }
      in_.append(got);
      parse_head();
      break;
    case Phase::kBody:
      read_deadline(core_->options.limits.body_timeout);
      if (read_to_ == area_.get()) {
        take_body(got);
      } else {
        body_came(bytes);
      }
      break;
    case Phase::kContinue:
    case Phase::kHandling:
      in_.append(got);
      read();
      break;
    case Phase::kSocket:
      pinged_ = false;
      if (socket_ != nullptr) {
        read_deadline(core_->options.limits.idle_timeout);
        socket_->take(got);
      }
      read();
      break;
    case Phase::kLinger:
      lingered_ += bytes;
      if (lingered_ > kLingerBytes) {
        close(CloseHow::kReset);
      } else {
        read();
      }
      break;
    case Phase::kHandshake:
    case Phase::kClosed:
      break;
  }
}

void Connection::parse_head() {
  // Empty lines between requests are tolerated (RFC 9112 2.2).
  std::size_t skip = 0;
  while (scan_.next == 0 && in_.compare(skip, 2, "\r\n") == 0)
    skip += 2;
  in_.erase(0, skip);
  if (in_ == "\r") {
    read();
    return;
  }
  const auto end = find_head_end(in_, scan_, core_->head_limits);
  if (!end) {
    refuse(end.error());
    return;
  }
  if (!*end) {
    read();
    return;
  }
  auto head = parse_request_head(std::string_view(in_).substr(0, **end), core_->head_limits);
  if (!head) {
    refuse(head.error());
    return;
  }
  in_.erase(0, **end);
  head_ = std::move(*head);
  keep_alive_ = head_.keep_alive;
  start_body();
}

void Connection::start_body() {
  const auto& limits = core_->options.limits;
  request_ = {};
  request_.method = std::move(head_.method);
  request_.path = std::move(head_.path);
  request_.query = std::move(head_.query);
  request_.headers = std::move(head_.headers);
  request_.peer = peer_;
  request_.received_at = core_->clock.now();
  const bool has_body = head_.chunked || head_.content_length > 0;
  if (has_body && core_->options.admit_head) {
    if (auto refusal = core_->options.admit_head(request_)) {
      answer_and_close(std::move(*refusal));
      return;
    }
  }
  const auto encoding = request_.header("content-encoding");
  if (!encoding.empty() && !iequals(encoding, "identity")) {
    refuse({kUnsupportedMediaType,
            "compressed request bodies are not accepted",
            "content-encoding",
            {}});
    return;
  }
  if (head_.content_length > limits.body_bytes_max) {
    refuse({kPayloadTooLarge,
            "the body is larger than " + std::to_string(limits.body_bytes_max) + " bytes",
            {},
            {}});
    return;
  }
  if (!has_body) {
    dispatch();
    return;
  }
  body_left_ = head_.content_length;
  chunks_.reset();
  if (head_.chunked) chunks_ = std::make_unique<ChunkDecoder>(limits.body_bytes_max);
  if (body_left_ > core_->body_room()) {  // before it is sent
    refuse_for_memory();
    return;
  }
  read_deadline(limits.body_timeout);
  body_end_ = request_.received_at + limits.body_total_timeout;
  if (head_.expect_continue && in_.empty()) {
    phase_ = Phase::kContinue;
    write("HTTP/1.1 100 Continue\r\n\r\n", {}, After::kMore, nullptr);
    return;
  }
  phase_ = Phase::kBody;
  take_body(std::exchange(in_, {}));
}

// Capacity grows fourfold as bytes come, so that little is copied, ends at the body's largest size,
// and is counted before it is taken. (Growing by less than double would make std::string take more
// than it was asked for.)
bool Connection::make_room(std::size_t bytes) {
  const std::size_t size = request_.body.size();
  const std::size_t size_max =
      chunks_ ? core_->options.limits.body_bytes_max : size + static_cast<std::size_t>(body_left_);
  const std::size_t needed = size + std::min(bytes, size_max - size);
  if (needed <= body_share_.bytes()) return true;
  std::size_t room = std::max({needed, 4 * body_share_.bytes(), kBodyRoomBytes});
  if (size_max < 2 * room) room = size_max;
  if (!body_share_.resize(*core_, room)) return false;
  request_.body.reserve(room);
  return true;
}

void Connection::refuse_for_memory() {
  ++core_->counters.bodies_over_memory;
  refuse(
      {kOverloaded, "the server's memory for request bodies is in use; try again shortly", {}, {}});
}

// Lets go of the request. A read that is under way may still write to its body, which stays for
// that.
void Connection::drop_request() {
  if (reading_) parked_ = std::move(request_.body);
  request_ = {};
  body_share_.give_back();
}

// Bytes that were read to behind the body's end, where there was room for them.
void Connection::body_came(std::size_t bytes) {
  std::string& body = request_.body;
  body.resize_and_overwrite(body.size() + bytes,
                            [](char*, std::size_t size) noexcept { return size; });
  body_left_ -= bytes;
  if (body_left_ > 0) {
    read();
  } else {
    dispatch();
  }
}

void Connection::take_body(std::string_view bytes) {
  if (!make_room(bytes.size())) {
    refuse_for_memory();
    return;
  }
  if (chunks_) {
    const auto used = chunks_->feed(bytes, request_.body);
    if (!used) {
      refuse(used.error());
      return;
    }
    if (!chunks_->done()) {
      read();
      return;
    }
    in_.append(bytes.substr(*used));
  } else {
    const auto used = static_cast<std::size_t>(std::min<std::uint64_t>(body_left_, bytes.size()));
    request_.body.append(bytes.substr(0, used));
    body_left_ -= used;
    if (body_left_ > 0) {
      read();
      return;
    }
    in_.append(bytes.substr(used));
  }
  dispatch();
}

void Connection::dispatch() {
  const auto self = shared_from_this();
  phase_ = Phase::kHandling;
  read_deadline_ = Instant::max();
  body_end_ = Instant::max();
  ++served_;
  ++core_->counters.requests;
  ++core_->counters.exchanges_now;
  auto exchange = std::make_unique<Exchange>(self, std::move(request_), std::move(body_share_),
                                             head_.version_1_1);
  exchange_ = exchange.get();
  request_ = {};
  read();
  core_->gate.start(core_->handler(std::move(exchange)));
}

// Also of a head that is not complete: the second word of its first line.
std::string_view Connection::request_path() const {
  if (!request_.path.empty()) return request_.path;
  std::string_view line = std::string_view(in_).substr(0, in_.find('\r'));
  line.remove_prefix(std::min(line.size(), line.find(' ') + 1));
  return line.substr(0, line.find(' '));
}

void Connection::refuse(const Error& error, int status_override) {
  switch (error.code) {
    case kPayloadTooLarge:
      ++core_->counters.bodies_too_large;
      break;
    case kHeadersTooLarge:
      ++core_->counters.headers_too_large;
      break;
    case kInvalidArgument:
    case kUnsupported:
    case kUnsupportedMediaType:
      ++core_->counters.malformed;
      break;
    default:
      break;
  }
  auto response = core_->refusal(error, request_path());
  if (status_override != 0) response.status = status_override;
  if (core_->options.on_refused) {
    const auto total = core_->clock.now() - request_begun_;
    core_->options.on_refused({peer_, request_.method, error.code, response.status, total});
  }
  answer_and_close(std::move(response));
}

void Connection::answer_and_close(HttpResponse response) {
  phase_ = Phase::kHandling;
  keep_alive_ = false;
  read_deadline_ = Instant::max();
  body_end_ = Instant::max();
  in_.clear();
  drop_request();
  chunks_.reset();
  auto head = response_head(*core_, response, true, false);
  write(std::move(head), std::move(response.body), After::kAnswered, nullptr);
}

void Connection::write(std::string first, std::string second, After after, OneShot<Status>* done) {
  ENSURE(!writing_ && open());
  out_ = {std::move(first), std::move(second)};
  out_done_ = 0;
  writing_ = true;
  after_ = after;
  write_waiter_ = done;
  write_more();
}

void Connection::write_more() {
  std::string_view first(out_[0]);
  std::string_view second(out_[1]);
  const auto skip = std::min(out_done_, first.size());
  first.remove_prefix(skip);
  second.remove_prefix(out_done_ - skip);
  const Instant now = core_->clock.now();
  write_deadline_ = now + core_->options.limits.write_timeout;
  if (exchange_ != nullptr)
    write_deadline_ = std::min(write_deadline_, std::max(exchange_->deadline_, now + kLastWords));
  arm();
  const std::array parts = {first, second};
  stream_->write_some(parts, shared_from_this());
}

void Connection::on_write(bool ok, std::size_t bytes) {
  if (phase_ == Phase::kClosed) return;
  if (!ok) {
    peer_gone();
    return;
  }
  core_->counters.bytes_out += bytes;
  out_done_ += bytes;
  if (out_done_ < out_[0].size() + out_[1].size()) {
    write_more();
    return;
  }
  written();
}

// The waiter goes first: its handler usually ends then, before the next request starts.
void Connection::written() {
  const auto self = shared_from_this();
  writing_ = false;
  write_deadline_ = Instant::max();
  out_ = {};
  if (phase_ == Phase::kContinue) {
    phase_ = Phase::kBody;
    take_body(std::exchange(in_, {}));
    return;
  }
  const bool answered = after_ == After::kAnswered;
  if (answered && exchange_ != nullptr) {
    exchange_ = nullptr;
    --core_->counters.exchanges_now;
  }
  if (auto* waiter = std::exchange(write_waiter_, nullptr)) waiter->set({});
  if (phase_ == Phase::kSocket && !writing_ && !answered) {
    if (!last_frame_.empty()) {
      write(std::exchange(last_frame_, {}), {}, After::kAnswered, nullptr);
    } else if (!control_.empty()) {
      write(take_control(), {}, After::kMore, nullptr);
    }
    return;
  }
  if (!answered || (phase_ != Phase::kHandling && phase_ != Phase::kSocket)) return;
  if (will_close()) {
    linger();
  } else {
    await_request();
  }
}

void Connection::abandon(OneShot<Status>* done) {
  if (write_waiter_ == done) write_waiter_ = nullptr;
}

// Unsent bytes of the answer would be lost to a reset if we closed with input unread, so we read
// until the peer closes too, for a while.
void Connection::linger() {
  phase_ = Phase::kLinger;
  in_.clear();
  read_deadline(core_->options.limits.linger_timeout);
  stream_->shutdown_send(shared_from_this());
  read();
}

void Connection::exchange_dropped(bool streaming) {
  if (exchange_ != nullptr) {
    exchange_ = nullptr;
    --core_->counters.exchanges_now;
  }
  if (!open()) return;
  if (!streaming && !writing_) {
    answer_and_close(core_->refusal({kInternal, "the request ended without an answer", {}, {}}));
    return;
  }
  // No terminating chunk: the client sees that the answer is not whole. What was written before
  // (an error event, say) still arrives, unless a write is stuck or only the close marks the end.
  ++core_->counters.streams_cut;
  if (writing_ || !head_.version_1_1) {
    close(CloseHow::kReset);
  } else {
    linger();
  }
}

void Connection::peer_gone() {
  const auto self = shared_from_this();
  if (exchange_ != nullptr) ++core_->counters.disconnects;
  close(CloseHow::kOrderly);
  tell_disconnected();
}

void Connection::cut() {
  const auto self = shared_from_this();
  if (exchange_ != nullptr) ++core_->counters.streams_cut;
  close(exchange_ != nullptr ? CloseHow::kReset : CloseHow::kOrderly);
  tell_disconnected();
}

void Connection::begin_socket(Socket& socket) {
  phase_ = Phase::kSocket;
  socket_ = &socket;
  keep_alive_ = false;
  read_deadline(core_->options.limits.idle_timeout);
  if (!in_.empty()) socket.take(std::exchange(in_, {}));
  read();
}

void Connection::send_control(std::string frame) {
  if (!open()) return;
  if (writing_) {
    control_ = std::move(frame);
  } else {
    write(std::move(frame), {}, After::kMore, nullptr);
  }
}

void Connection::end_socket(std::string close_frame) {
  if (!open()) return;
  const auto self = shared_from_this();
  read_deadline_ = Instant::max();
  if (writing_) {
    last_frame_ = std::move(close_frame);
  } else {
    write(std::move(close_frame), {}, After::kAnswered, nullptr);
  }
  if (auto* exchange = std::exchange(exchange_, nullptr)) {
    --core_->counters.exchanges_now;
    socket_ = nullptr;
    tell(*exchange);
  }
}

void Connection::read_on() {
  if (reading_ || socket_ == nullptr) return;
  read_deadline(core_->options.limits.idle_timeout);
  read();
}

void Connection::join_write(OneShot<Status>* done) {
  ENSURE(writing_ && write_waiter_ == nullptr);
  write_waiter_ = done;
}

void Connection::stop() {
  if (socket_ != nullptr) {
    socket_->end_messages(false);
    return;
  }
  if (phase_ == Phase::kHead && in_.empty()) close(CloseHow::kOrderly);
}

// The callback goes before the failing write: it belongs to an exchange that is alive now, and may
// not be after the handler ran on.
void Connection::tell_disconnected() {
  if (exchange_ != nullptr) tell(*exchange_);
}

// A handler that waits in receive() goes on last: nothing here is touched after it.
void Connection::tell(Exchange& exchange) {
  exchange.disconnected_ = true;
  if (exchange.failure_.message.empty())
    exchange.failure_ = {kCancelled, "the client closed the connection", {}, {}};
  const auto failure = exchange.failure_;
  Socket* socket = exchange.socket_.get();
  const bool receiving = socket != nullptr && socket->receiving();
  if (socket != nullptr && !receiving) socket->end_messages(true);  // wakes nobody
  if (const auto call = std::exchange(exchange.disconnect_call_, nullptr)) call();
  if (auto* waiter = std::exchange(write_waiter_, nullptr)) waiter->set(std::unexpected(failure));
  if (receiving) socket->end_messages(true);
}

void Connection::close(CloseHow how) {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  if (timer_ != 0) core_->clock.cancel(std::exchange(timer_, 0));
  stream_->close(how);
  drop_request();
  --core_->counters.connections_now;
  core_->forget(this);
}

void Connection::read_deadline(Duration from_now) {
  read_deadline_ = core_->clock.now() + from_now;
  arm();
}

void Connection::arm() {
  const auto earliest = std::min({read_deadline_, write_deadline_, body_end_});
  if (earliest >= timer_at_) return;
  if (timer_ != 0) core_->clock.cancel(timer_);
  timer_at_ = earliest;
  timer_ = core_->clock.call_at(earliest, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_timer();
  });
}

void Connection::on_timer() {
  timer_ = 0;
  timer_at_ = Instant::max();
  if (phase_ == Phase::kClosed) return;
  const auto now = core_->clock.now();
  if (now >= write_deadline_) {
    ++core_->counters.write_timeouts;
    if (exchange_ != nullptr) {
      exchange_->failure_ = {kDeadlineExceeded, "the client stopped reading the answer", {}, {}};
    }
    close(CloseHow::kReset);
    tell_disconnected();
  } else if (now >= std::min(read_deadline_, body_end_)) {
    on_read_timeout();
  } else {
    arm();
  }
}

void Connection::on_read_timeout() {
  switch (phase_) {
    case Phase::kHead:
      if (in_.empty()) {
        ++(served_ > 0 ? core_->counters.idle_timeouts : core_->counters.header_timeouts);
        close(CloseHow::kOrderly);
        return;
      }
      ++core_->counters.header_timeouts;
      refuse({kDeadlineExceeded, "the request head took too long to arrive", {}, {}}, 408);
      return;
    case Phase::kBody:
      ++core_->counters.body_timeouts;
      refuse({kDeadlineExceeded, "the request body took too long to arrive", {}, {}}, 408);
      return;
    case Phase::kSocket:
      if (!std::exchange(pinged_, true)) {
        read_deadline(core_->options.limits.idle_timeout);
        send_control(frame_head(Opcode::kPing, 0));
        return;
      }
      ++core_->counters.idle_timeouts;
      close(CloseHow::kReset);
      tell_disconnected();
      return;
    case Phase::kLinger:  // the kernel goes on sending what the client hasn't taken yet
      close(CloseHow::kOrderly);
      return;
    case Phase::kHandshake:
      ++core_->counters.header_timeouts;
      [[fallthrough]];
    default:
      close(CloseHow::kReset);
      return;
  }
}

}  // namespace penstock::http
