// What stands round the generation of an answer of the Responses API, as exchanges.
//
// KeptExchange passes an answer on to its client and stores it when it is complete, before the
// client learns of it: whoever has seen the end of an answer can go on from it. An answer that
// can't be stored is passed on all the same; the record says so. BackgroundExchange has no client:
// events go into the store, and nobody listens but the store itself, which says when to stop.
// SocketExchange answers one message of a WebSocket: each event is a message, and a refusal is an
// error event with its status.
//
// Errors: BackgroundExchange::write() kCancelled when the response was ended or deleted meanwhile.
// Concurrency: shard thread only; the store is called on its pool.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "domain/request_record.h"
#include "port/http.h"
#include "service/gateway/context.h"
#include "service/gateway/responses_format.h"

namespace penstock::gateway {

// Calls the store on its pool. kOverloaded when too much waits for it.
template <typename T>
Task<Result<T>> on_store(GatewayContext& context, std::function<Result<T>(ResponseStore&)> work) {
  Result<T> out = fail(ErrorCode::kInternal, "the store was not called");
  const Status ran = co_await run_on(*context.response_pool, context.clock,
                                     [&] { out = work(*context.responses); });
  if (!ran) {
    co_return fail(ErrorCode::kOverloaded,
                   "too many requests wait for the store of responses; try again shortly");
  }
  co_return out;
}

class KeptExchange final : public HttpExchange {
 public:
  // `stored` is complete but for output and body, which come from the writer, and the id.
  KeptExchange(GatewayContext& context, HttpExchange& inner, const ResponsesFormat& format,
               RequestRecord& record, std::string previous_id, protocol::ItemsById known)
      : context_(context),
        inner_(inner),
        format_(format),
        record_(record),
        previous_id_(std::move(previous_id)),
        known_(std::move(known)) {}

  const HttpRequest& request() const override { return inner_.request(); }
  void on_disconnect(std::function<void()> call) override { inner_.on_disconnect(std::move(call)); }
  void set_deadline(Instant deadline) override { inner_.set_deadline(deadline); }
  Task<Status> respond(HttpResponse response) override;
  void begin_stream(int status, std::string content_type,
                    std::vector<HttpHeader> headers) override {
    inner_.begin_stream(status, std::move(content_type), std::move(headers));
  }
  Task<Status> write(std::string chunk) override;
  Task<Status> finish() override { return inner_.finish(); }

 private:
  Task<void> keep_when_over();

  GatewayContext& context_;
  HttpExchange& inner_;
  const ResponsesFormat& format_;
  RequestRecord& record_;
  std::string previous_id_;
  protocol::ItemsById known_;
  bool kept_ = false;
};

class BackgroundExchange final : public HttpExchange {
 public:
  BackgroundExchange(GatewayContext& context, HttpRequest request, const ResponsesFormat& format,
                     std::string id)
      : context_(context), request_(std::move(request)), format_(format), id_(std::move(id)) {}

  const HttpRequest& request() const override { return request_; }
  void on_disconnect(std::function<void()> call) override { stop_ = std::move(call); }
  void set_deadline(Instant /*deadline*/) override {}
  // An answer that is no stream is a refusal: the response failed.
  Task<Status> respond(HttpResponse response) override;
  void begin_stream(int /*status*/, std::string /*content_type*/,
                    std::vector<HttpHeader> /*headers*/) override {}
  Task<Status> write(std::string chunk) override;
  Task<Status> finish() override { co_return Status{}; }

  // Nobody wants it any more.
  void stop() const {
    if (stop_) stop_();
  }
  // Why it can't have ended by itself, for who ends it then.
  const Error& failure() const { return failure_; }

 private:
  GatewayContext& context_;
  HttpRequest request_;
  const ResponsesFormat& format_;
  std::string id_;
  std::function<void()> stop_;
  std::uint64_t next_sequence_ = 0;
  Error failure_{ErrorCode::kUnavailable, "the response was not completed", {}, {}};
};

class SocketExchange final : public HttpExchange {
 public:
  SocketExchange(HttpExchange& connection, WebSocket& socket, HttpRequest request)
      : connection_(connection), socket_(socket), request_(std::move(request)) {}
  ~SocketExchange() override {
    connection_.on_disconnect([] {});
    connection_.set_deadline(Instant::max());
  }

  const HttpRequest& request() const override { return request_; }
  void on_disconnect(std::function<void()> call) override {
    connection_.on_disconnect(std::move(call));
  }
  void set_deadline(Instant deadline) override { connection_.set_deadline(deadline); }
  // What is no refusal is a stream that was ready at once.
  Task<Status> respond(HttpResponse response) override;
  void begin_stream(int /*status*/, std::string /*content_type*/,
                    std::vector<HttpHeader> /*headers*/) override {}
  Task<Status> write(std::string chunk) override;
  Task<Status> finish() override { co_return Status{}; }

  // The output items as a JSON array, once the response has been completed or cut.
  const std::optional<std::string>& output() const { return output_; }

 private:
  HttpExchange& connection_;
  WebSocket& socket_;
  HttpRequest request_;
  std::uint64_t sequence_ = 0;
  std::optional<std::string> output_;
};

// {"type":"error","status":...,"error":{...}}: how a message is refused.
std::string socket_error(int status, std::string_view error_object);

// How a running response ends from outside: "cancelled", or "failed" with the error.
MakeEnding cancelled_ending();
MakeEnding failed_ending(Error error);

}  // namespace penstock::gateway
