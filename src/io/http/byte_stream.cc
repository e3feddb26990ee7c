#include "io/http/byte_stream.h"

#include <fmt/format.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <fstream>
#include <utility>

namespace penstock::http {
namespace {

namespace asio = boost::asio;
// A sequence of buffers, as Asio wants it.
struct Buffers {
  using value_type = asio::const_buffer;
  using const_iterator = const asio::const_buffer*;
  std::array<asio::const_buffer, ByteStream::kPartsMax> parts;
  std::size_t count = 0;

  const_iterator begin() const { return parts.data(); }
  const_iterator end() const { return parts.data() + count; }
};

Buffers gather(std::span<const std::string_view> parts) {
  Buffers out;
  for (const std::string_view part : parts.first(std::min(parts.size(), out.parts.size()))) {
    if (!part.empty()) out.parts[out.count++] = asio::buffer(part.data(), part.size());
  }
  return out;
}

void close_socket(asio::ip::tcp::socket& socket, CloseHow how) {
  boost::system::error_code ignored;
  if (how == CloseHow::kReset) {
    socket.set_option(asio::socket_base::linger(true, 0), ignored);
  }
  socket.close(ignored);
}

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}

  void handshake(std::shared_ptr<StreamListener> listener) override {
    listener->on_handshake(true);
  }
  void read_some(char* data, std::size_t size, std::shared_ptr<StreamListener> listener) override {
    socket_.async_read_some(asio::buffer(data, size),
                            [l = std::move(listener)](const boost::system::error_code& error,
                                                      std::size_t n) { l->on_read(!error, n); });
  }
  void write_some(std::span<const std::string_view> parts,
                  std::shared_ptr<StreamListener> listener) override {
    socket_.async_write_some(gather(parts),
                             [l = std::move(listener)](const boost::system::error_code& error,
                                                       std::size_t n) { l->on_write(!error, n); });
  }
  void shutdown_send(std::shared_ptr<StreamListener>) override {
    boost::system::error_code ignored;
    socket_.shutdown(asio::socket_base::shutdown_send, ignored);
  }
  void close(CloseHow how) override { close_socket(socket_, how); }

 private:
  asio::ip::tcp::socket socket_;
};

class TlsStream final : public ByteStream {
 public:
  using Side = asio::ssl::stream_base::handshake_type;

  TlsStream(asio::ip::tcp::socket socket, asio::ssl::context& context, Side side)
      : stream_(std::move(socket), context), side_(side) {}

  // Before the handshake.
  void expect_host(const std::string& host) {
    boost::system::error_code ignored;
    SSL_set_tlsext_host_name(stream_.native_handle(), host.c_str());
    stream_.set_verify_callback(asio::ssl::host_name_verification(host), ignored);
  }

  void handshake(std::shared_ptr<StreamListener> listener) override {
    stream_.async_handshake(side_,
                            [l = std::move(listener)](const boost::system::error_code& error) {
                              l->on_handshake(!error);
                            });
  }
  void read_some(char* data, std::size_t size, std::shared_ptr<StreamListener> listener) override {
    stream_.async_read_some(asio::buffer(data, size),
                            [l = std::move(listener)](const boost::system::error_code& error,
                                                      std::size_t n) { l->on_read(!error, n); });
  }
  void write_some(std::span<const std::string_view> parts,
                  std::shared_ptr<StreamListener> listener) override {
    stream_.async_write_some(gather(parts),
                             [l = std::move(listener)](const boost::system::error_code& error,
                                                       std::size_t n) { l->on_write(!error, n); });
  }
  // Sends close_notify; the answer to it ends the pending read. The listener is held so that the
  // stream outlives the operation.
  void shutdown_send(std::shared_ptr<StreamListener> listener) override {
    stream_.async_shutdown(
        [l = std::move(listener)](const boost::system::error_code&) { l->on_read(false, 0); });
  }
  void close(CloseHow how) override { close_socket(stream_.next_layer(), how); }

 private:
  asio::ssl::stream<asio::ip::tcp::socket> stream_;
  Side side_;
};

int choose_http_1_1(SSL*, const unsigned char** out, unsigned char* out_size,
                    const unsigned char* in, unsigned int in_size, void*) {
  static constexpr unsigned char kOffer[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kOffer, sizeof kOffer, in, in_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

Status check_readable(const std::string& path, std::string_view what) {
  if (path.empty()) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("TLS needs both a certificate and a key; the {} file is missing", what));
  }
  if (!std::ifstream(path)) {
    return fail(ErrorCode::kIo, fmt::format("can't read the TLS {} file {}", what, path));
  }
  return {};
}

}  // namespace

std::unique_ptr<ByteStream> make_plain_stream(asio::ip::tcp::socket socket) {
  return std::make_unique<PlainStream>(std::move(socket));
}

std::unique_ptr<ByteStream> make_tls_stream(asio::ip::tcp::socket socket,
                                            asio::ssl::context& context) {
  return std::make_unique<TlsStream>(std::move(socket), context, asio::ssl::stream_base::server);
}

std::unique_ptr<ByteStream> make_tls_client_stream(asio::ip::tcp::socket socket,
                                                   asio::ssl::context& context,
                                                   const std::string& host) {
  auto stream =
      std::make_unique<TlsStream>(std::move(socket), context, asio::ssl::stream_base::client);
  stream->expect_host(host);
  return stream;
}

Result<std::shared_ptr<asio::ssl::context>> make_tls_client_context(const std::string& ca_file,
                                                                    bool verify_certificate) {
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_client);
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  boost::system::error_code error;
  if (ca_file.empty()) {
    context->set_default_verify_paths(error);
  } else {
    context->load_verify_file(ca_file, error);
  }
  if (error)
    return fail(ErrorCode::kIo,
                fmt::format("can't read the CA file {}: {}", ca_file, error.message()));
  context->set_verify_mode(verify_certificate ? asio::ssl::verify_peer : asio::ssl::verify_none,
                           error);
  return context;
}

Result<std::shared_ptr<asio::ssl::context>> make_tls_context(const std::string& cert_file,
                                                             const std::string& key_file) {
  TRY_STATUS(check_readable(cert_file, "certificate"));
  TRY_STATUS(check_readable(key_file, "key"));
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  SSL_CTX* native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(
      native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_cipher_list(native, "ECDHE+AESGCM:ECDHE+CHACHA20");
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(native, choose_http_1_1, nullptr);
  boost::system::error_code error;
  context->use_certificate_chain_file(cert_file, error);
  if (error) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} holds no PEM certificate chain: {}", cert_file, error.message()));
  }
  context->use_private_key_file(key_file, asio::ssl::context::pem, error);
  if (error || SSL_CTX_check_private_key(native) != 1) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} holds no PEM private key that belongs to the certificate in {}",
                            key_file, cert_file));
  }
  return context;
}

}  // namespace penstock::http
