#include "io/http/dial.h"

#include <fmt/format.h>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <string>
#include <utility>

namespace penstock::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using enum ErrorCode;

// One attempt; its operations keep it alive.
class Dialing final : public StreamListener, public std::enable_shared_from_this<Dialing> {
 public:
  using Done = std::function<void(Result<std::unique_ptr<ByteStream>>)>;

  Dialing(AsioClock& clock, Url url, std::shared_ptr<asio::ssl::context> tls, Done done)
      : clock_(clock),
        url_(std::move(url)),
        tls_(std::move(tls)),
        done_(std::move(done)),
        resolver_(clock.context()),
        socket_(clock.context()) {}

  void start(Duration timeout) {
    timer_ = clock_.call_at(clock_.now() + timeout, [self = shared_from_this()] {
      self->timer_ = 0;
      self->finish(fail(kDeadlineExceeded, fmt::format("connecting to {}:{} took too long",
                                                       self->url_.host, self->url_.port)));
    });
    error_code not_literal;
    const auto address = asio::ip::make_address(url_.host, not_literal);
    if (!not_literal) {
      socket_.async_connect(
          {address, url_.port},
          [self = shared_from_this()](const error_code& error) { self->connected(error); });
      return;
    }
    resolver_.async_resolve(
        url_.host, std::to_string(url_.port),
        [self = shared_from_this()](const error_code& error, const tcp::resolver::results_type& r) {
          if (error) return self->finish(self->unavailable("can't resolve the host", error));
          asio::async_connect(self->socket_, r, [self](const error_code& e, const tcp::endpoint&) {
            self->connected(e);
          });
        });
  }

  void on_handshake(bool ok) override {
    if (ok) return finish(std::move(stream_));
    finish(fail(kUnavailable, fmt::format("the TLS handshake with {}:{} failed; is its certificate "
                                          "valid for that name, and its CA known?",
                                          url_.host, url_.port)));
  }
  void on_read(bool, std::size_t) override {}
  void on_write(bool, std::size_t) override {}

 private:
  std::unexpected<Error> unavailable(std::string_view what, const error_code& error) const {
    return fail(kUnavailable,
                fmt::format("{} {}:{}: {}", what, url_.host, url_.port, error.message()));
  }

  void connected(const error_code& error) {
    if (!done_) return;
    if (error) return finish(unavailable("can't connect to", error));
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    if (!tls_) return finish(make_plain_stream(std::move(socket_)));
    stream_ = make_tls_client_stream(std::move(socket_), *tls_, url_.host);
    stream_->handshake(shared_from_this());
  }

  void finish(Result<std::unique_ptr<ByteStream>> result) {
    if (!done_) return;
    if (timer_ != 0) clock_.cancel(std::exchange(timer_, 0));
    resolver_.cancel();
    error_code ignored;
    if (!result) socket_.close(ignored);
    if (!result && stream_) stream_->close(CloseHow::kReset);
    std::exchange(done_, nullptr)(std::move(result));
  }

  AsioClock& clock_;
  const Url url_;
  std::shared_ptr<asio::ssl::context> tls_;
  Done done_;
  tcp::resolver resolver_;
  tcp::socket socket_;
  std::unique_ptr<ByteStream> stream_;
  Clock::TimerId timer_ = 0;
};

}  // namespace

void dial(AsioClock& clock, const Url& url, std::shared_ptr<asio::ssl::context> tls,
          Duration timeout, std::function<void(Result<std::unique_ptr<ByteStream>>)> done) {
  std::make_shared<Dialing>(clock, url, std::move(tls), std::move(done))->start(timeout);
}

}  // namespace penstock::http
