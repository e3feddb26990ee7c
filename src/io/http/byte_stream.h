// ByteStream: one connection, plain or TLS, with completions as virtual calls.
//
// The only place (with the listener) that knows Asio's sockets: heavy headers stay in
// byte_stream.cc. At most one read and one write are under way at a time; an operation keeps its
// listener alive. Errors: a completion says `ok` or not; why a peer went away does not matter to
// the protocol. Concurrency: shard thread only.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"

namespace boost::asio::ssl {
class context;
}

namespace penstock::http {

class StreamListener {
 public:
  virtual void on_handshake(bool ok) = 0;
  virtual void on_read(bool ok, std::size_t bytes) = 0;
  virtual void on_write(bool ok, std::size_t bytes) = 0;

 protected:
  ~StreamListener() = default;
};

enum class CloseHow : std::uint8_t { kOrderly, kReset };

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Completes at once for plain streams, inside the call.
  virtual void handshake(std::shared_ptr<StreamListener> listener) = 0;
  virtual void read_some(char* data, std::size_t size,
                         std::shared_ptr<StreamListener> listener) = 0;
  // Writes a prefix of the parts, one after the other, in one go; of more than kPartsMax the first
  // ones. What they view must live until the completion.
  static constexpr std::size_t kPartsMax = 16;
  virtual void write_some(std::span<const std::string_view> parts,
                          std::shared_ptr<StreamListener> listener) = 0;
  // Tells the peer that nothing more comes; reading goes on.
  virtual void shutdown_send(std::shared_ptr<StreamListener> listener) = 0;
  // Ends pending operations (they complete with ok = false later) and frees the socket.
  virtual void close(CloseHow how) = 0;
};

std::unique_ptr<ByteStream> make_plain_stream(boost::asio::ip::tcp::socket socket);
std::unique_ptr<ByteStream> make_tls_stream(boost::asio::ip::tcp::socket socket,
                                            boost::asio::ssl::context& context);

// The other side of it: names `host` in the handshake and, where the context verifies at all, wants
// a certificate for it.
std::unique_ptr<ByteStream> make_tls_client_stream(boost::asio::ip::tcp::socket socket,
                                                   boost::asio::ssl::context& context,
                                                   const std::string& host);

// A client context: TLS 1.2 and later; trusts the CAs of `ca_file` (PEM; empty: the system's).
Result<std::shared_ptr<boost::asio::ssl::context>> make_tls_client_context(
    const std::string& ca_file, bool verify_certificate);

// A server context: TLS 1.2 and later, forward-secret AEAD ciphers, ALPN http/1.1.
Result<std::shared_ptr<boost::asio::ssl::context>> make_tls_context(const std::string& cert_file,
                                                                    const std::string& key_file);

}  // namespace penstock::http
