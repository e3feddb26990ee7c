// HttpClient: a small blocking HTTP/1.1 client for our own tools: chat, eval, health checks, tests.
//
// One request a connection (Connection: close), http and https, whole answers or pieces by
// callback. It follows no redirects and knows no proxies: it talks to Penstock.
//
// Errors: kInvalidArgument for a bad URL; kUnavailable when nobody answers at the address;
// kDeadlineExceeded past a time-out; kCancelled by the callback or `cancel`; kDataLoss when the
// answer is cut or malformed; kPayloadTooLarge beyond body_bytes_max. An HTTP error status is an
// answer. Concurrency: send() blocks its thread; calls are independent.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "port/http.h"

namespace penstock::http {

struct Url {
  bool tls = false;
  std::string host;  // without brackets
  std::uint16_t port = 80;
  std::string target = "/";  // path and query
};

// Parses http://host[:port][/path][?query] and https://...
Result<Url> parse_url(std::string_view text);

struct ClientRequest {
  std::string method = "GET";
  std::string url;
  std::vector<HttpHeader> headers;  // host, content-length and connection are added
  std::string body;                 // sent as application/json unless a content-type is given
  Duration connect_timeout = std::chrono::seconds(5);
  Duration idle_timeout = std::chrono::minutes(10);  // without any byte of the answer
  std::size_t body_bytes_max = std::size_t{256} << 20;
  std::string ca_file;                        // PEM; empty: the system's
  bool verify_certificate = true;             // off only for self-signed test servers
  const std::atomic<bool>* cancel = nullptr;  // looked at every 50 ms
  // Gets the body's bytes as they come, for 2xx answers only; false stops with kCancelled.
  std::function<bool(std::string_view)> on_body;
};

struct ClientResponse {
  int status = 0;
  std::vector<HttpHeader> headers;
  std::string body;  // empty when on_body took it
  std::string_view header(std::string_view name) const;
};

Result<ClientResponse> send(const ClientRequest& request);

}  // namespace penstock::http
