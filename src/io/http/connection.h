// Connection: one client, from accept to close; a state machine over completions.
//
// handshake -> head -> (continue) -> body -> handling -> head ... -> linger -> closed. One read is
// kept pending in every state but a full pipeline buffer, so a peer that goes away is noticed while
// the handler works. A request may turn it into a WebSocket: handling -> socket -> linger. One
// timer serves all deadlines: moving a deadline only stores a number; when the timer fires too
// early it is armed again.
//
// Invariants: at most one exchange is current; writes are asked for one at a time by the exchange;
// after close() nothing calls the exchange again and every write fails.
// Internal to io/http. Concurrency: shard thread only.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/http/byte_stream.h"
#include "io/http/message.h"
#include "io/http/server_core.h"
#include "io/http/websocket.h"

namespace penstock::http {

class Exchange;

class Connection final : public StreamListener, public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<HttpServer::Core> core, std::unique_ptr<ByteStream> stream,
             std::string peer);
  ~Connection();

  // Starts reading requests; with `refused`, answers that and closes instead.
  void start(const Error* refused);
  // Closes when no request is under way, otherwise after the current answer.
  void stop();
  // Closes now; the current exchange learns of it.
  void cut();

  // For Exchange.
  enum class After : std::uint8_t { kMore, kAnswered };
  // Sends first + second, then sets `*done` (which may be null). Precondition: no write under way.
  void write(std::string first, std::string second, After after, OneShot<Status>* done);
  // The waiter of the current write is going away.
  void abandon(OneShot<Status>* done);
  // The exchange is destroyed before its answer was complete.
  void exchange_dropped(bool streaming);
  // The exchange has made it a WebSocket: what comes from now on is frames.
  void begin_socket(Socket& socket);
  // Sends a control frame as soon as no write is under way; one that waits already is replaced.
  void send_control(std::string frame);
  std::string take_control() { return std::exchange(control_, {}); }
  // Ends the WebSocket: the close frame goes out, the exchange learns of it, the connection ends.
  void end_socket(std::string close_frame);
  // Reads on after the socket was full.
  void read_on();
  // Waits, in `*done`, for the end of the write of a control frame.
  void join_write(OneShot<Status>* done);
  bool open() const { return phase_ != Phase::kClosed && phase_ != Phase::kLinger; }
  bool writing() const { return writing_; }
  bool will_close() const { return !keep_alive_ || core_->stopping; }
  HttpServer::Core& core() { return *core_; }

  void on_handshake(bool ok) override;
  void on_read(bool ok, std::size_t bytes) override;
  void on_write(bool ok, std::size_t bytes) override;

 private:
  enum class Phase : std::uint8_t {
    kHandshake,
    kHead,
    kContinue,
    kBody,
    kHandling,
    kSocket,
    kLinger,
    kClosed
  };

  void await_request();
  void read();
  void parse_head();
  void start_body();
  void take_body(std::string_view bytes);
  void body_came(std::size_t bytes);
  void drop_request();
  void dispatch();
  // Makes room in the body for what `bytes` more of input can add; false when memory for bodies is
  // used up.
  bool make_room(std::size_t bytes);
  void refuse_for_memory();
  // Answers a request that the handler never got, and tells on_refused.
  void refuse(const Error& error, int status_override = 0);
  std::string_view request_path() const;
  void answer_and_close(HttpResponse response);
  void write_more();
  void written();
  void linger();
  void peer_gone();
  void close(CloseHow how);
  void tell_disconnected();
  void tell(Exchange& exchange);

  void read_deadline(Duration from_now);
  void arm();
  void on_timer();
  void on_read_timeout();

  std::shared_ptr<HttpServer::Core> core_;
  std::unique_ptr<ByteStream> stream_;
  std::string peer_;
  Phase phase_ = Phase::kHandshake;

  std::unique_ptr<char[]> area_;  // where the pending read puts its bytes
  std::size_t area_size_ = 0;
  bool reading_ = false;
  char* read_to_ = nullptr;  // the area, or the body
  std::string parked_;       // a body that is not wanted any more, and may still be read to
  std::string in_;           // received, not consumed: (part of) the next head, pipelined requests
  HeadScan scan_;
  RequestHead head_;
  Instant request_begun_;  // its first byte
  HttpRequest request_;
  BodyShare body_share_;
  std::uint64_t body_left_ = 0;
  std::unique_ptr<ChunkDecoder> chunks_;
  bool keep_alive_ = true;
  std::uint64_t served_ = 0;
  std::size_t lingered_ = 0;

  std::array<std::string, 2> out_;
  std::size_t out_done_ = 0;
  bool writing_ = false;
  After after_ = After::kMore;
  OneShot<Status>* write_waiter_ = nullptr;
  Exchange* exchange_ = nullptr;
  Socket* socket_ = nullptr;
  std::string control_;     // a control frame that waits for the end of a write
  std::string last_frame_;  // the close frame that waits for it
  bool pinged_ = false;     // nothing has come since

  Instant read_deadline_ = Instant::max();
  Instant write_deadline_ = Instant::max();
  Instant body_end_ = Instant::max();
  Clock::TimerId timer_ = 0;
  Instant timer_at_ = Instant::max();

  friend class Exchange;
  friend class Socket;
};

// The HttpExchange of one request.
class Exchange final : public HttpExchange {
 public:
  Exchange(std::shared_ptr<Connection> connection, HttpRequest request, BodyShare body_share,
           bool chunked_allowed);
  ~Exchange() override;

  const HttpRequest& request() const override { return request_; }
  void on_disconnect(std::function<void()> call) override;
  void set_deadline(Instant deadline) override { deadline_ = deadline; }
  Task<Status> respond(HttpResponse response) override;
  void begin_stream(int status, std::string content_type, std::vector<HttpHeader> headers) override;
  Task<Status> write(std::string chunk) override;
  Task<Status> finish() override;
  Task<Result<WebSocket*>> accept_websocket(std::vector<HttpHeader> headers) override;

 private:
  friend class Connection;
  friend class Socket;
  enum class State : std::uint8_t { kNew, kHeadPending, kStreaming, kAnswered };

  Task<Status> send(std::string first, std::string second, Connection::After after);
  std::string take_head();

  std::shared_ptr<Connection> connection_;
  HttpRequest request_;
  BodyShare body_share_;
  bool version_1_1_;
  bool head_only_;
  State state_ = State::kNew;
  BodyFraming framing_ = BodyFraming::kChunked;
  std::string stream_head_;
  std::function<void()> disconnect_call_;
  bool disconnected_ = false;
  Instant deadline_ = Instant::max();
  Error failure_;  // why writes fail now
  std::unique_ptr<Socket> socket_;
};

// Writes the whole answer's head for `response`; the body follows as it is.
std::string response_head(HttpServer::Core& core, const HttpResponse& response, bool close,
                          bool head_only);

}  // namespace penstock::http
