#include <utility>

#include "io/http/connection.h"

namespace penstock::http {
namespace {

// Bodies up to this size are joined with the head: one buffer, and one TLS record.
constexpr std::size_t kJoinBytes = 16 << 10;

bool has_no_body(int status) {
  return status == 204 || status == 304;
}

// Of a task that may be destroyed while it waits for a write.
struct Abandon {
  Connection& connection;
  OneShot<Status>* done;
  ~Abandon() { connection.abandon(done); }
};

}  // namespace

std::string response_head(HttpServer::Core& core, const HttpResponse& response, bool close,
                          bool head_only) {
  ResponseStart start;
  start.status = response.status;
  start.content_type = has_no_body(response.status) ? std::string_view() : response.content_type;
  start.headers = response.headers;
  start.framing = has_no_body(response.status) ? BodyFraming::kNone : BodyFraming::kLength;
  start.content_length = response.body.size();
  start.close = close;
  start.date = core.date();
  std::string head;
  head.reserve(256 + (head_only ? 0 : std::min(response.body.size(), kJoinBytes)));
  append_response_head(head, start);
  return head;
}

Exchange::Exchange(std::shared_ptr<Connection> connection, HttpRequest request,
                   BodyShare body_share, bool chunked_allowed)
    : connection_(std::move(connection)),
      request_(std::move(request)),
      body_share_(std::move(body_share)),
      version_1_1_(chunked_allowed),
      head_only_(request_.method == "HEAD") {}

Exchange::~Exchange() {
  // An exchange that is no longer the connection's current one has been answered or cut.
  if (connection_->exchange_ == this) connection_->exchange_dropped(state_ != State::kNew);
}

void Exchange::on_disconnect(std::function<void()> call) {
  if (disconnected_) {
    call();
  } else {
    disconnect_call_ = std::move(call);
  }
}

Task<Status> Exchange::send(std::string first, std::string second, Connection::After after) {
  if (disconnected_ || !connection_->open()) {
    auto failure = failure_;
    if (failure.message.empty())
      failure = {ErrorCode::kCancelled, "the connection is closed", {}, {}};
    co_return std::unexpected(std::move(failure));
  }
  if (socket_ && connection_->writing()) {
    OneShot<Status> over;
    const Abandon abandon{*connection_, &over};
    connection_->join_write(&over);
    CO_TRY_STATUS(co_await over);
  }
  if (connection_->writing()) {
    // Only after a write whose task was destroyed half-way: what is on the wire can't be continued.
    connection_->cut();
    co_return fail(ErrorCode::kCancelled, "a write was abandoned, the connection is closed");
  }
  OneShot<Status> done;
  const Abandon abandon{*connection_, &done};
  if (socket_) first.insert(0, connection_->take_control());
  connection_->write(std::move(first), std::move(second), after, &done);
  co_return co_await done;
}

Task<Status> Exchange::respond(HttpResponse response) {
  ENSURE(state_ == State::kNew);
  state_ = State::kAnswered;
  auto head = response_head(connection_->core(), response, connection_->will_close(), head_only_);
  if (head_only_ || has_no_body(response.status)) {
    response.body.clear();
  } else if (response.body.size() <= kJoinBytes) {
    head.append(std::exchange(response.body, {}));
  }
  co_return co_await send(std::move(head), std::move(response.body), Connection::After::kAnswered);
}

void Exchange::begin_stream(int status, std::string content_type, std::vector<HttpHeader> headers) {
  ENSURE(state_ == State::kNew);
  state_ = State::kHeadPending;
  if (!version_1_1_) {
    framing_ = BodyFraming::kUntilClose;
    connection_->keep_alive_ = false;
  }
  ResponseStart start;
  start.status = status;
  start.content_type = content_type;
  start.headers = headers;
  start.framing = framing_;
  start.close = connection_->will_close();
  start.date = connection_->core().date();
  append_response_head(stream_head_, start);
}

std::string Exchange::take_head() {
  state_ = State::kStreaming;
  return std::exchange(stream_head_, {});
}

Task<Status> Exchange::write(std::string chunk) {
  ENSURE(state_ == State::kHeadPending || state_ == State::kStreaming);
  if (head_only_ || chunk.empty()) {
    if (disconnected_) co_return std::unexpected(failure_);
    co_return Status();
  }
  auto out = take_head();
  out.reserve(out.size() + chunk.size() + 16);
  if (framing_ == BodyFraming::kChunked) append_chunk_size(out, chunk.size());
  out.append(chunk);
  if (framing_ == BodyFraming::kChunked) out.append("\r\n");
  co_return co_await send(std::move(out), {}, Connection::After::kMore);
}

Task<Result<WebSocket*>> Exchange::accept_websocket(std::vector<HttpHeader> headers) {
  ENSURE(state_ == State::kNew);
  CO_TRY(std::string accepted,
         version_1_1_ ? websocket_accept(request_)
                      : fail(ErrorCode::kInvalidArgument, "a WebSocket needs HTTP/1.1"));
  headers.push_back({"upgrade", "websocket"});
  headers.push_back({"connection", "upgrade"});
  headers.push_back({"sec-websocket-accept", std::move(accepted)});
  ResponseStart start;
  start.status = 101;
  start.headers = headers;
  start.framing = BodyFraming::kNone;
  start.date = connection_->core().date();
  std::string head;
  append_response_head(head, start);
  state_ = State::kStreaming;
  static_cast<void>(co_await send(std::move(head), {}, Connection::After::kMore));
  socket_ = std::make_unique<Socket>(*connection_, *this);
  if (!disconnected_) connection_->begin_socket(*socket_);
  co_return socket_.get();
}

Task<Status> Exchange::finish() {
  ENSURE(state_ == State::kHeadPending || state_ == State::kStreaming);
  auto out = take_head();
  state_ = State::kAnswered;
  if (framing_ == BodyFraming::kChunked && !head_only_) out.append("0\r\n\r\n");
  co_return co_await send(std::move(out), {}, Connection::After::kAnswered);
}

}  // namespace penstock::http
