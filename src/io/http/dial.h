// dial(): opens a connection to a server, plain or TLS, within a time limit.
//
// Names are resolved without blocking the loop; all addresses of a name are tried in order.
// Errors: kUnavailable says what failed: the name, the connection, or the TLS handshake;
// kDeadlineExceeded. Concurrency: shard thread only; `done` is called once, never inside dial().
#pragma once

#include <functional>
#include <memory>

#include "base/result.h"
#include "io/http/asio_clock.h"
#include "io/http/byte_stream.h"
#include "io/http/client.h"

namespace penstock::http {

// `tls` is null for plain connections.
void dial(AsioClock& clock, const Url& url, std::shared_ptr<boost::asio::ssl::context> tls,
          Duration timeout, std::function<void(Result<std::unique_ptr<ByteStream>>)> done);

}  // namespace penstock::http
