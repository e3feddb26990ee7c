#include "io/http/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <charconv>
#include <chrono>
#include <optional>
#include <span>
#include <utility>

#include "io/http/message.h"

namespace penstock::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using enum ErrorCode;
using Steady = std::chrono::steady_clock;

constexpr auto kCancelPoll = std::chrono::milliseconds(50);
constexpr std::size_t kReadBytes = 32 << 10;

// One request's connection. Operations are asynchronous inside so that they can have time-outs;
// run() blocks until the one under way has completed.
class Session {
 public:
  Session(const ClientRequest& request, const Url& url)
      : request_(request), url_(url), socket_(context_) {}

  Status connect();
  Status write(std::string_view bytes);
  // Bytes read into `buffer`; 0 at the end of the stream.
  Result<std::size_t> read(std::span<char> buffer);

 private:
  Status run(Duration timeout, std::string_view doing);
  Status start_tls();

  const ClientRequest& request_;
  const Url& url_;
  asio::io_context context_{1};
  tcp::socket socket_;
  std::optional<asio::ssl::context> tls_context_;
  std::optional<asio::ssl::stream<tcp::socket&>> tls_;
  bool completed_ = false;
  error_code error_;
  std::size_t bytes_ = 0;
};

Status Session::run(Duration timeout, std::string_view doing) {
  const auto deadline = Steady::now() + timeout;
  std::optional<Error> stopped;
  while (!completed_) {
    const auto now = Steady::now();
    if (request_.cancel != nullptr && request_.cancel->load(std::memory_order_relaxed)) {
      stopped = Error{kCancelled, fmt::format("{} {} was cancelled", doing, request_.url), {}, {}};
    } else if (now >= deadline) {
      stopped =
          Error{kDeadlineExceeded, fmt::format("{} {} took too long", doing, request_.url), {}, {}};
    }
    if (stopped) break;
    context_.restart();
    context_.run_one_until(std::min(deadline, now + kCancelPoll));
  }
  if (stopped) {
    error_code ignored;
    socket_.close(ignored);
    context_.restart();
    context_.run();  // the aborted operation completes, so nothing refers to our buffers any more
    return std::unexpected(std::move(*stopped));
  }
  completed_ = false;
  return {};
}

Status Session::connect() {
  error_code error;
  tcp::resolver resolver(context_);
  const auto endpoints = resolver.resolve(url_.host, std::to_string(url_.port), error);
  if (error) {
    return fail(kUnavailable,
                fmt::format("can't resolve host \"{}\": {}", url_.host, error.message()));
  }
  asio::async_connect(socket_, endpoints, [this](const error_code& e, const tcp::endpoint&) {
    error_ = e;
    completed_ = true;
  });
  TRY_STATUS(run(request_.connect_timeout, "connecting to"));
  if (error_) {
    return fail(kUnavailable,
                fmt::format("can't connect to {}:{}: {}", url_.host, url_.port, error_.message()));
  }
  socket_.set_option(tcp::no_delay(true), error);
  return url_.tls ? start_tls() : Status();
}

Status Session::start_tls() {
  error_code error;
  tls_context_.emplace(asio::ssl::context::tls_client);
  if (!request_.ca_file.empty()) {
    tls_context_->load_verify_file(request_.ca_file, error);
    if (error) {
      return fail(kIo,
                  fmt::format("can't read the CA file {}: {}", request_.ca_file, error.message()));
    }
  } else {
    tls_context_->set_default_verify_paths(error);
  }
  tls_.emplace(socket_, *tls_context_);
  SSL_set_tlsext_host_name(tls_->native_handle(), url_.host.c_str());
  if (request_.verify_certificate) {
    tls_->set_verify_mode(asio::ssl::verify_peer, error);
    tls_->set_verify_callback(asio::ssl::host_name_verification(url_.host), error);
  }
  tls_->async_handshake(asio::ssl::stream_base::client, [this](const error_code& e) {
    error_ = e;
    completed_ = true;
  });
  TRY_STATUS(run(request_.connect_timeout, "the TLS handshake with"));
  if (error_) {
    return fail(kUnavailable, fmt::format("TLS handshake with {}:{} failed: {}", url_.host,
                                          url_.port, error_.message()));
  }
  return {};
}

Status Session::write(std::string_view bytes) {
  const auto done = [this](const error_code& e, std::size_t n) {
    error_ = e;
    bytes_ = n;
    completed_ = true;
  };
  const auto buffer = asio::buffer(bytes.data(), bytes.size());
  if (tls_) {
    asio::async_write(*tls_, buffer, done);
  } else {
    asio::async_write(socket_, buffer, done);
  }
  // A write error is not the end: the server may have answered (413) and stopped reading.
  return run(request_.idle_timeout, "sending to");
}

Result<std::size_t> Session::read(std::span<char> buffer) {
  const auto done = [this](const error_code& e, std::size_t n) {
    error_ = e;
    bytes_ = n;
    completed_ = true;
  };
  const auto target = asio::buffer(buffer.data(), buffer.size());
  if (tls_) {
    tls_->async_read_some(target, done);
  } else {
    socket_.async_read_some(target, done);
  }
  TRY_STATUS(run(request_.idle_timeout, "reading from"));
  if (error_ == asio::error::eof || error_ == asio::ssl::error::stream_truncated) return 0U;
  if (error_) {
    return fail(kDataLoss, fmt::format("reading from {}: {}", request_.url, error_.message()));
  }
  return bytes_;
}

std::string serialize(const ClientRequest& request, const Url& url) {
  const bool v6 = url.host.contains(':');
  std::string out =
      fmt::format("{} {} HTTP/1.1\r\nhost: {}{}{}:{}\r\nconnection: close\r\n", request.method,
                  url.target, v6 ? "[" : "", url.host, v6 ? "]" : "", url.port);
  bool has_type = false;
  for (const auto& [name, value] : request.headers) {
    has_type |= iequals(name, "content-type");
    out += fmt::format("{}: {}\r\n", name, value);
  }
  const bool has_body = !request.body.empty() || request.method == "POST";
  if (has_body && !has_type) out += "content-type: application/json\r\n";
  if (has_body) out += fmt::format("content-length: {}\r\n", request.body.size());
  out += "\r\n";
  out += request.body;
  return out;
}

// Reads one answer from a session.
class Reader {
 public:
  Reader(Session& session, const ClientRequest& request) : session_(session), request_(request) {}

  Result<ClientResponse> read_response() {
    ResponseHead head;
    do {
      TRY(head, read_head());
    } while (head.status >= 100 && head.status < 200);
    ClientResponse response;
    response.status = head.status;
    response.headers = std::move(head.headers);
    const bool empty = request_.method == "HEAD" || head.status == 204 || head.status == 304;
    if (!empty) {
      TRY_STATUS(read_body(head, response));
    }
    return response;
  }

 private:
  Status cut() const {
    return fail(kDataLoss, fmt::format("the answer of {} was cut off", request_.url));
  }

  // Gets more bytes into pending_; false at the end of the stream.
  Result<bool> more() {
    std::array<char, kReadBytes> buffer;
    TRY(const auto n, session_.read(buffer));
    pending_.append(buffer.data(), n);
    return n > 0;
  }

  Result<ResponseHead> read_head() {
    const HeadLimits limits{std::size_t{256} << 10, 500};
    HeadScan scan;
    while (true) {
      auto end = find_head_end(pending_, scan, limits);
      if (!end) return fail(kDataLoss, fmt::format("{} does not answer in HTTP", request_.url));
      if (*end) {
        auto head = parse_response_head(std::string_view(pending_).substr(0, **end), limits);
        pending_.erase(0, **end);
        if (!head) return fail(kDataLoss, std::move(head.error().message));
        return head;
      }
      TRY(const bool got, more());
      if (!got) return std::unexpected(cut().error());
    }
  }

  Status deliver(std::string bytes, ClientResponse& response) const {
    if (bytes.empty()) return {};
    if (request_.on_body && response.status >= 200 && response.status < 300) {
      if (request_.on_body(bytes)) return {};
      return fail(kCancelled, "stopped reading the answer");
    }
    if (response.body.size() + bytes.size() > request_.body_bytes_max) {
      return fail(kPayloadTooLarge, fmt::format("the answer of {} is larger than {} bytes",
                                                request_.url, request_.body_bytes_max));
    }
    response.body += bytes;
    return {};
  }

  Status read_body(const ResponseHead& head, ClientResponse& response) {
    if (head.chunked) return read_chunks(response);
    std::uint64_t left = head.content_length.value_or(UINT64_MAX);
    while (left > 0) {
      if (pending_.empty()) {
        TRY(const bool got, more());
        if (!got) return head.content_length ? cut() : Status();
      }
      const auto take = static_cast<std::size_t>(std::min<std::uint64_t>(left, pending_.size()));
      TRY_STATUS(deliver(pending_.substr(0, take), response));
      pending_.erase(0, take);
      left -= take;
    }
    return {};
  }

  Status read_chunks(ClientResponse& response) {
    ChunkDecoder decoder(SIZE_MAX >> 1);
    while (true) {
      std::string bytes;
      const auto used = decoder.feed(pending_, bytes);
      if (!used) return fail(kDataLoss, fmt::format("{}: {}", request_.url, used.error().message));
      pending_.erase(0, *used);
      TRY_STATUS(deliver(std::move(bytes), response));
      if (decoder.done()) return {};
      TRY(const bool got, more());
      if (!got) return cut();
    }
  }

  Session& session_;
  const ClientRequest& request_;
  std::string pending_;
};

}  // namespace

Result<Url> parse_url(std::string_view text) {
  const auto bad = [text](std::string_view why) {
    return fail(kInvalidArgument, fmt::format("\"{}\" is not a URL to send to: {}", text, why));
  };
  Url url;
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    url.tls = true;
    url.port = 443;
  } else if (!rest.starts_with("http://")) {
    return bad("it must start with http:// or https://");
  }
  rest.remove_prefix(url.tls ? 8 : 7);
  const bool clean = std::ranges::all_of(rest, [](char c) { return c > 0x20 && c < 0x7F; });
  if (!clean) return bad("it holds a space, control or non-ASCII character");
  const auto slash = rest.find_first_of("/?#");
  auto authority = rest.substr(0, slash);
  if (slash != std::string_view::npos) {
    const auto target = rest.substr(slash, rest.find('#') - slash);
    url.target = target.starts_with('/') ? std::string(target) : "/" + std::string(target);
  }
  if (authority.contains('@')) return bad("it holds a user name");
  std::string_view port;
  if (authority.starts_with('[')) {
    const auto close = authority.find(']');
    if (close == std::string_view::npos) return bad("the [ is not closed");
    url.host = authority.substr(1, close - 1);
    port = authority.substr(close + 1);
  } else {
    const auto colon = authority.find(':');
    url.host = authority.substr(0, colon);
    if (colon != std::string_view::npos) port = authority.substr(colon);
  }
  if (url.host.empty()) return bad("the host is missing");
  if (port.empty()) return url;
  const auto* end = port.data() + port.size();
  const auto parsed = std::from_chars(port.data() + 1, end, url.port);
  if (port.front() != ':' || parsed.ec != std::errc() || parsed.ptr != end) return bad("bad port");
  return url;
}

std::string_view ClientResponse::header(std::string_view name) const {
  for (const auto& h : headers) {
    if (iequals(h.name, name)) return h.value;
  }
  return {};
}

Result<ClientResponse> send(const ClientRequest& request) {
  TRY(const Url url, parse_url(request.url));
  for (const auto& [name, value] : request.headers) {
    if (value.find_first_of("\r\n") != std::string::npos) {
      return fail(kInvalidArgument, fmt::format("header {} holds a line break", name), name);
    }
  }
  Session session(request, url);
  TRY_STATUS(session.connect());
  TRY_STATUS(session.write(serialize(request, url)));
  return Reader(session, request).read_response();
}

}  // namespace penstock::http
