// FakeExchange: an HttpExchange that keeps what was answered, for tests of the service.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "port/clock.h"
#include "port/http.h"

namespace penstock::testing {

// A WebSocket whose client is the test.
class FakeSocket final : public WebSocket {
 public:
  explicit FakeSocket(Clock& clock) : messages(clock, 100) {}
  Task<Result<std::optional<std::string>>> receive(Instant until) override {
    auto message = co_await messages.pop(until);
    if (message || !messages.closed()) co_return message;
    co_return fail(going_away ? ErrorCode::kUnavailable : ErrorCode::kCancelled, "it is over");
  }
  Task<Status> send(std::string message) override {
    if (messages.closed() && !going_away) co_return fail(ErrorCode::kCancelled, "the client left");
    sent.push_back(std::move(message));
    co_return Status{};
  }
  void close(std::uint16_t code, std::string /*reason*/) override { close_code = code; }

  Channel<std::string> messages;  // of the client; close() it for a client that leaves
  bool going_away = false;        // it is the server that ends
  std::vector<std::string> sent;
  std::uint16_t close_code = 0;
};

// Outlives the exchange, so the test can look after the handler has ended.
struct Answered {
  int status = 0;
  std::string content_type;
  std::vector<HttpHeader> headers;
  std::string body;  // whole answer, or all chunks of a stream
  bool streamed = false;
  bool finished = false;
  int writes = 0;
  bool refuse_writes = false;  // as if the client had gone
  int stalls_after = -1;       // writes; then the client reads no more, until the write time-out
  std::function<void()> disconnect;
  Instant deadline;
  std::shared_ptr<FakeSocket> socket;  // what the connection can become

  std::string header(std::string_view name) const {
    for (const HttpHeader& h : headers) {
      if (h.name == name) return h.value;
    }
    return {};
  }
};

class FakeExchange final : public HttpExchange {
 public:
  FakeExchange(HttpRequest request, std::shared_ptr<Answered> answered)
      : request_(std::move(request)), answered_(std::move(answered)) {}

  const HttpRequest& request() const override { return request_; }
  void on_disconnect(std::function<void()> call) override {
    answered_->disconnect = std::move(call);
  }
  void set_deadline(Instant deadline) override { answered_->deadline = deadline; }
  Task<Status> respond(HttpResponse response) override {
    answered_->status = response.status;
    answered_->content_type = std::move(response.content_type);
    answered_->headers = std::move(response.headers);
    answered_->body = std::move(response.body);
    answered_->finished = true;
    co_return Status{};
  }
  void begin_stream(int status, std::string content_type,
                    std::vector<HttpHeader> headers) override {
    answered_->status = status;
    answered_->content_type = std::move(content_type);
    answered_->headers = std::move(headers);
    answered_->streamed = true;
  }
  Task<Status> write(std::string chunk) override {
    if (answered_->refuse_writes) co_return fail(ErrorCode::kCancelled, "the client is gone");
    if (answered_->writes == answered_->stalls_after)
      co_return fail(ErrorCode::kDeadlineExceeded, "the client stopped reading the answer");
    answered_->body += chunk;
    ++answered_->writes;
    co_return Status{};
  }
  Task<Status> finish() override {
    answered_->finished = true;
    co_return Status{};
  }
  Task<Result<WebSocket*>> accept_websocket(std::vector<HttpHeader> headers) override {
    if (!answered_->socket) co_return fail(ErrorCode::kUnsupported, "version 13 is spoken here");
    answered_->status = 101;
    answered_->headers = std::move(headers);
    co_return answered_->socket.get();
  }

 private:
  HttpRequest request_;
  std::shared_ptr<Answered> answered_;
};

}  // namespace penstock::testing
