// HttpServer: HTTP/1.1 over TCP or TLS for one shard, behind port/http.h.
//
// Connections read a head, then a body, then run the handler with one exchange at a time (pipelined
// requests wait in order), and keep reading meanwhile so that a client that goes away is noticed at
// once. An answer or an event goes out in one write; the head of a stream goes with its first
// event. Malformed input is answered with 400 (413, 431, ... where they fit) through
// `error_response` and the connection is closed after the answer was taken in.
//
// Invariants: memory a connection is bounded by header limit + body limit + one event, and all
// bodies together, until their exchanges end, by body_memory_max; the handler sees only complete,
// valid requests; both Content-Length and Transfer-Encoding, folded headers, NUL and bare CR or LF
// are refused, so no two parsers can disagree about where a request ends. End of input counts as
// gone, also a half-close: no HTTP client half-closes before its answer. Errors: start() names the
// address, certificate or key at fault. Concurrency: shard thread only. Source: RFC 9112;
// facts/api.md 3.1, 5.6, 5.7. Every limit has a name, a default and a counter.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/task.h"
#include "io/http/asio_clock.h"
#include "port/http.h"

namespace penstock::http {

struct ServerLimits {
  std::size_t header_bytes_max = std::size_t{64} << 10;  // request line included -> 431
  std::size_t header_count_max = 100;                    // -> 431
  std::size_t body_bytes_max = std::size_t{32} << 20;    // -> 413
  // All bodies of the server together, held until their exchanges end -> 503 with retry-after.
  std::size_t body_memory_max = std::size_t{512} << 20;
  std::size_t connections_max = 4096;                  // -> 503 with retry-after
  Duration header_timeout = std::chrono::seconds(15);  // first byte to end of head; TLS handshake
  Duration body_timeout = std::chrono::seconds(30);    // without any new byte of the body
  Duration body_total_timeout = std::chrono::minutes(10);
  Duration idle_timeout = std::chrono::seconds(75);   // between requests
  Duration write_timeout = std::chrono::seconds(30);  // without the peer taking a byte
  Duration linger_timeout = std::chrono::seconds(2);  // for the peer to take the last answer in
};

// A request that was answered without the handler: what is known of it, for log and metrics.
struct RefusedRequest {
  std::string peer;
  std::string method;  // empty when no head was read, or a bad one
  ErrorCode code = ErrorCode::kInternal;
  int status = 0;
  Duration total{};  // since its first byte; zero for a connection that was refused
};

struct ServerOptions {
  std::string address = "127.0.0.1";  // IPv4 or IPv6 literal
  std::uint16_t port = 0;             // 0: the system picks one, see port()
  bool reuse_port = false;            // several shards listen on one port
  std::string tls_cert_file;          // PEM chain; with tls_key_file, turns TLS on
  std::string tls_key_file;
  ServerLimits limits;
  // Formats the server's own refusals; `path` is raw, as far as it came, with its query. Default:
  // text/plain.
  std::function<HttpResponse(const Error&, std::string_view path)> error_response;
  // Called with the head (no body) of a request that has a body, before that is read. What it
  // returns is the answer, and the connection closes; it is not told to on_refused.
  std::function<std::optional<HttpResponse>(const HttpRequest& head)> admit_head;
  // Called for each answer of the server's own to a request that the handler never got.
  std::function<void(const RefusedRequest&)> on_refused;
};

// Totals since start, for /metrics; *_now are current.
struct ServerCounters {
  std::uint64_t connections_accepted = 0;
  std::uint64_t connections_now = 0;
  std::uint64_t connections_refused = 0;  // connections_max
  std::uint64_t requests = 0;             // complete requests given to the handler
  std::uint64_t exchanges_now = 0;
  std::uint64_t malformed = 0;
  std::uint64_t headers_too_large = 0;
  std::uint64_t bodies_too_large = 0;
  std::uint64_t bodies_over_memory = 0;  // body_memory_max
  std::uint64_t body_bytes_now = 0;      // what counts against it
  std::uint64_t header_timeouts = 0;
  std::uint64_t body_timeouts = 0;
  std::uint64_t idle_timeouts = 0;
  std::uint64_t write_timeouts = 0;
  std::uint64_t disconnects = 0;  // peer gone before its answer was complete
  std::uint64_t streams_cut = 0;  // by us, in mid-answer
  std::uint64_t tls_failures = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
};

class HttpServer {
 public:
  // Listens at once; the handler runs on the clock's io_context. `clock` outlives the server.
  static Result<std::unique_ptr<HttpServer>> start(AsioClock& clock, ServerOptions options,
                                                   HttpHandler handler);
  // Cuts what is left. Precondition: no handler is running (await drained() first).
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;
  const ServerCounters& counters() const;

  // Closes the listener and idle connections; running exchanges go on and their connections close
  // after the answer.
  void stop();
  // Cuts every connection now; handlers learn it through on_disconnect and failing writes.
  void cut();
  // Returns when no connection and no handler is left; after stop() that is bounded by the handlers
  // and the limits above. One waiter at a time.
  Task<void> drained();

  struct Core;  // in server_core.h

 private:
  explicit HttpServer(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;
};

}  // namespace penstock::http
