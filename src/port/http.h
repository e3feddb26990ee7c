// HTTP as the service sees it: a request with its body, and an exchange to answer through.
//
// io/http owns sockets, parsing, TLS, keep-alive and limits (header count and bytes, body bytes,
// idle and write time-outs); the service gets only complete, size-checked requests. One exchange is
// answered exactly once: either respond(), or begin_stream() and then write()s and finish().
//
// Invariants: destroying an exchange that was not answered sends 500 and closes; destroying one in
// mid-stream cuts the connection, so a client never takes half an answer for a whole one.
// write() takes one complete event and awaits when the peer reads slowly: memory a connection is
// bounded by one event plus the socket buffer.
// Errors: write() fails with kCancelled when the client is gone, kDeadlineExceeded when it reads
// nothing for the write time-out, or until the answer's deadline.
// Concurrency: shard thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/task.h"
#include "base/units.h"

namespace penstock {

struct HttpHeader {
  std::string name;
  std::string value;
};

struct HttpRequest {
  std::string method;  // upper case
  std::string path;    // decoded path without query, starts with '/'
  std::string query;   // raw, without '?'
  std::vector<HttpHeader> headers;
  std::string body;
  std::string peer;     // address, for the log
  Instant received_at;  // when the last byte of the header arrived

  // The value of the first header of that name (any case), or empty.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<HttpHeader> headers;
  std::string body;
};

// A connection that has become a WebSocket (RFC 6455), of text messages.
//
// Messages wait in order until they are received; when many do, the connection is not read, and so
// a peer that goes away is not noticed. Pings are answered by themselves.
// Errors: kCancelled when the peer has closed or is gone, or does what the protocol forbids (it is
// told); kUnavailable when this server goes away.
class WebSocket {
 public:
  virtual ~WebSocket() = default;
  // The next message; nothing when `until` passes first.
  virtual Task<Result<std::optional<std::string>>> receive(Instant until) = 0;
  virtual Task<Status> send(std::string message) = 0;
  // The last word: a code of RFC 6455 7.4 and at most 123 bytes of UTF-8.
  virtual void close(std::uint16_t code, std::string reason) = 0;
};

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual const HttpRequest& request() const = 0;
  // Called once, on the shard's thread, when the peer closes before the answer is complete.
  virtual void on_disconnect(std::function<void()> call) = 0;
  // The last moment of the answer: a write under way then fails, and the connection is cut; one
  // that begins later has a second, for an answer's last words. None without this call.
  virtual void set_deadline(Instant deadline) = 0;
  virtual Task<Status> respond(HttpResponse response) = 0;
  // Sends the head of a chunked answer together with the first write().
  virtual void begin_stream(int status, std::string content_type,
                            std::vector<HttpHeader> headers) = 0;
  virtual Task<Status> write(std::string chunk) = 0;
  virtual Task<Status> finish() = 0;
  // Instead of an answer, makes the connection a WebSocket, which lives as long as the exchange. A
  // request that does not ask for one as it must is an Error, and is to be answered.
  virtual Task<Result<WebSocket*>> accept_websocket(std::vector<HttpHeader> headers);
};

// Handles one request; runs until the exchange is answered. Kept alive by the server's gate.
using HttpHandler = std::function<Task<void>(std::unique_ptr<HttpExchange>)>;

}  // namespace penstock
