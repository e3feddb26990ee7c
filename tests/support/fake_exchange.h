// FakeExchange: an HttpExchange that keeps what was answered, for tests of the service.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "port/http.h"

namespace penstock::testing {

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

 private:
  HttpRequest request_;
  std::shared_ptr<Answered> answered_;
};

}  // namespace penstock::testing
