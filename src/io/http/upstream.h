// HttpUpstream: the Upstream port over HTTP/1.1, plain or TLS, on one shard's loop.
//
// Connections are kept open between requests for a short time, shorter than the server keeps them:
// servers such as uvicorn close after 5 s, and a request that meets the close is lost. A connection
// that waits is read all the while, so one that the server closes goes at once; what still slips
// through is sent again on a new connection (port/upstream.h). Of several idle ones the youngest is
// taken, so that the others grow old and go.
//
// Invariants: a connection carries one call at a time and goes back only when the answer was read
// to its end, the request was sent to its end and the server did not say "close". Memory of a call:
// its body, and at most four reads not yet taken.
// Errors: as port/upstream.h; make() names a bad address.
// Concurrency: shard thread only. `clock` outlives it and the turns of the loop in which
// connections that were closed go; calls end before it does. Source: RFC 9112 section 9;
// facts/engines.md 4.1.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "io/http/asio_clock.h"
#include "io/http/client.h"
#include "port/upstream.h"

namespace penstock::http {

struct UpstreamOptions {
  std::string url;  // http://host:port or https://..., a path is put before every target
  Duration connect_timeout = std::chrono::seconds(2);
  Duration idle_max = std::chrono::milliseconds(2500);
  std::size_t idle_connections_max = 256;
  std::string ca_file = {};        // PEM; empty: the system's
  bool verify_certificate = true;  // off only for self-signed test servers
};

class HttpUpstream final : public Upstream {
 public:
  static Result<std::unique_ptr<HttpUpstream>> make(AsioClock& clock, UpstreamOptions options);
  ~HttpUpstream() override;

  std::unique_ptr<UpstreamCall> call(UpstreamRequest request) override;
  void close() override;
  const UpstreamCounters& counters() const override;
  std::size_t idle_connections() const;

  class Pool;

 private:
  explicit HttpUpstream(std::shared_ptr<Pool> pool);
  std::shared_ptr<Pool> pool_;
};

}  // namespace penstock::http
