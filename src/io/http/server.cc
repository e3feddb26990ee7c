#include "io/http/server.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <boost/asio/ip/address.hpp>
#include <ctime>
#include <utility>
#include <vector>

#include "io/http/connection.h"
#include "io/http/server_core.h"

namespace penstock::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// Connections beyond the limit that still get a 503; more are closed without a word.
constexpr std::size_t kRefusalsMax = 64;
constexpr Duration kAcceptRetry = std::chrono::milliseconds(100);

HttpResponse plain_refusal(const Error& error, std::string_view /*path*/) {
  HttpResponse response;
  response.status = error_info(error.code).http_status;
  response.content_type = "text/plain; charset=utf-8";
  response.body = error.message + "\n";
  return response;
}

}  // namespace

HttpServer::Core::Core(AsioClock& the_clock, ServerOptions the_options, HttpHandler the_handler)
    : clock(the_clock),
      options(std::move(the_options)),
      handler(std::move(the_handler)),
      head_limits{options.limits.header_bytes_max, options.limits.header_count_max},
      acceptor(clock.context()) {
  if (!options.error_response) options.error_response = plain_refusal;
}

Status HttpServer::Core::listen() {
  boost::system::error_code error;
  const auto address = asio::ip::make_address(options.address, error);
  if (error) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("listen address \"{}\" is not an IPv4 or IPv6 address", options.address));
  }
  const tcp::endpoint endpoint(address, options.port);
  const auto step = [&](const char* what) -> Status {
    if (!error) return {};
    return fail(ErrorCode::kIo, fmt::format("can't {} {}:{}: {}", what, options.address,
                                            options.port, error.message()));
  };
  acceptor.open(endpoint.protocol(), error);
  TRY_STATUS(step("open a socket for"));
  acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (options.reuse_port) {
    const int on = 1;
    setsockopt(acceptor.native_handle(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  }
  acceptor.bind(endpoint, error);
  TRY_STATUS(step("listen on"));
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  TRY_STATUS(step("listen on"));
  port = acceptor.local_endpoint(error).port();
  return step("read the port of");
}

void HttpServer::Core::accept() {
  acceptor.async_accept(
      [weak = weak_from_this()](const boost::system::error_code& error, tcp::socket socket) {
        const auto core = weak.lock();
        if (!core || core->stopping) return;
        if (error) {
          // Out of descriptors, most likely: wait until some connection has closed.
          core->accept_retry = core->clock.call_at(core->clock.now() + kAcceptRetry, [weak] {
            if (const auto c = weak.lock(); c && !c->stopping) {
              c->accept_retry = 0;
              c->accept();
            }
          });
          return;
        }
        boost::system::error_code ignored;
        const auto peer = socket.remote_endpoint(ignored).address().to_string();
        core->admit(std::move(socket), peer);
        core->accept();
      });
}

void HttpServer::Core::admit(tcp::socket socket, const std::string& peer) {
  boost::system::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  ++counters.connections_accepted;
  const bool full = connections.size() >= options.limits.connections_max;
  if (full) {
    ++counters.connections_refused;
    if (tls || connections.size() >= options.limits.connections_max + kRefusalsMax) return;
  }
  auto stream =
      tls ? make_tls_stream(std::move(socket), *tls) : make_plain_stream(std::move(socket));
  const auto connection = std::make_shared<Connection>(shared_from_this(), std::move(stream), peer);
  const Error refused{
      ErrorCode::kOverloaded, "too many connections; try again in a moment", {}, {}};
  connection->start(full ? &refused : nullptr);
}

void HttpServer::Core::close_listener() {
  boost::system::error_code ignored;
  acceptor.close(ignored);
  if (accept_retry != 0) clock.cancel(std::exchange(accept_retry, 0));
}

void HttpServer::Core::forget(Connection* connection) {
  connections.erase(connection);
  if (!connections.empty() || empty_waiter == nullptr) return;
  clock.post([weak = weak_from_this()] {
    const auto core = weak.lock();
    if (!core || !core->connections.empty() || core->empty_waiter == nullptr) return;
    std::exchange(core->empty_waiter, nullptr)->set(true);
  });
}

HttpResponse HttpServer::Core::refusal(const Error& error, std::string_view path) const {
  auto response = options.error_response(error, path);
  const HttpHeader retry{"retry-after", "1"};
  const bool has_retry = std::ranges::any_of(
      response.headers, [](const HttpHeader& h) { return iequals(h.name, "retry-after"); });
  if (error.code == ErrorCode::kOverloaded && !has_retry) response.headers.push_back(retry);
  return response;
}

std::string_view HttpServer::Core::date() {
  const std::int64_t second = std::time(nullptr);
  if (second != date_second_) {
    date_second_ = second;
    date_text_ = http_date(second);
  }
  return date_text_;
}

HttpServer::HttpServer(std::shared_ptr<Core> core) : core_(std::move(core)) {}

HttpServer::~HttpServer() {
  stop();
  cut();
  core_->handler = nullptr;  // completions that are still queued keep the core, but call nobody
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(AsioClock& clock, ServerOptions options,
                                                      HttpHandler handler) {
  auto core = std::make_shared<Core>(clock, std::move(options), std::move(handler));
  if (!core->options.tls_cert_file.empty() || !core->options.tls_key_file.empty()) {
    TRY(core->tls, make_tls_context(core->options.tls_cert_file, core->options.tls_key_file));
  }
  TRY_STATUS(core->listen());
  core->accept();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(core)));
}

std::uint16_t HttpServer::port() const {
  return core_->port;
}
const ServerCounters& HttpServer::counters() const {
  return core_->counters;
}

void HttpServer::stop() {
  core_->stopping = true;
  core_->close_listener();
  // The copy keeps the iteration safe: closing removes from the set.
  for (Connection* connection : std::vector(core_->connections.begin(), core_->connections.end())) {
    connection->stop();
  }
}

void HttpServer::cut() {
  std::vector<std::shared_ptr<Connection>> all;
  for (Connection* connection : core_->connections)
    all.push_back(connection->shared_from_this());
  for (const auto& connection : all)
    connection->cut();
}

Task<void> HttpServer::drained() {
  const auto core = core_;
  while (core->gate.running() > 0 || !core->connections.empty()) {
    co_await core->gate.drained();
    if (core->connections.empty()) continue;
    OneShot<bool> empty;
    core->empty_waiter = &empty;
    co_await empty;
  }
}

}  // namespace penstock::http
