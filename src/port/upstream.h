// Upstream: a server of somebody else that requests are sent to, as the service sees it.
//
// io/http owns sockets, connections kept open, syntax and time-outs of connecting; the service gets
// heads and body bytes as they come. One call is one request and its answer.
//
// Invariants: destroying a call whose answer was not read to its end cuts its connection, which is
// how the server learns that nobody wants it any more. A request that a server closed on before the
// first byte of an answer, on a connection that was kept open, is sent once more on a new one: the
// server had closed it for being idle.
// Errors: kUnavailable: nobody answers there; kDeadlineExceeded; kCancelled after cancel();
// kConflict: it could not be sent by `send_by`; kDataLoss: the answer was cut or is no HTTP. An
// HTTP error status is an answer. Concurrency: shard thread only; one await of a call at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/task.h"
#include "base/units.h"
#include "port/http.h"

namespace penstock {

struct UpstreamRequest {
  std::string method = "POST";
  std::string target = "/";         // path and query
  std::vector<HttpHeader> headers;  // host and content-length are added
  std::string body;
  // Instead of it: the body in pieces, which outlive the call.
  std::vector<std::string_view> pieces = {};
  // From then on it is not sent any more, nor sent once more: what it says would not hold.
  Instant send_by = Instant::max();
};

struct UpstreamHead {
  int status = 0;
  std::vector<HttpHeader> headers;

  // The value of the first header of that name (any case), or empty.
  std::string_view header(std::string_view name) const;
};

class UpstreamCall {
 public:
  virtual ~UpstreamCall() = default;
  // Sends the request and awaits the head of the answer. Once, before read().
  virtual Task<Result<UpstreamHead>> head(Instant deadline) = 0;
  // The next bytes of the body as they come; empty at its end.
  virtual Task<Result<std::string>> read(Instant deadline) = 0;
  // The whole request has gone out, be it on a connection that closed then; not: the server can't
  // have understood it.
  virtual bool sent() const = 0;
  // Ends it: what is awaited and all later awaits fail with kCancelled.
  virtual void cancel() = 0;
};

struct UpstreamCounters {
  std::uint64_t opened = 0;   // connections
  std::uint64_t reused = 0;   // requests on a connection that had one before
  std::uint64_t retired = 0;  // closed for being idle, before the server does it
  std::uint64_t stale = 0;    // requests sent again: the server had closed
};

class Upstream {
 public:
  virtual ~Upstream() = default;
  // `call` ends before the upstream does.
  virtual std::unique_ptr<UpstreamCall> call(UpstreamRequest request) = 0;
  // Closes the connections that are kept open, and keeps none from now on.
  virtual void close() = 0;
  virtual const UpstreamCounters& counters() const = 0;
};

}  // namespace penstock
