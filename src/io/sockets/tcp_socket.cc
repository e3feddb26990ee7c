#include "io/sockets/tcp_socket.h"

#include <netdb.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include <fmt/format.h>

namespace penstock::sockets {
namespace {

constexpr int kBacklog = 128;

Descriptor new_socket(const TcpAddress& address) {
  return Descriptor(
      ::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

const sockaddr* raw(const sockaddr_storage& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

}  // namespace

Result<TcpAddress> resolve(const std::string& host_port) {
  const std::size_t colon = host_port.rfind(':');
  std::string host = host_port.substr(0, colon == std::string::npos ? 0 : colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  if (host.empty() || colon + 1 == host_port.size()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" is no HOST:PORT, such as 10.0.0.7:7400", host_port));
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(host.c_str(), host_port.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("cannot look up {}: {}", host_port, ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  TcpAddress address;
  std::memcpy(&address.bytes, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  address.text = host_port;
  return address;
}

Result<Descriptor> listen_on(const TcpAddress& address) {
  Descriptor fd = new_socket(address);
  const int on = 1;
  if (fd.get() < 0 || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd.get(), raw(address.bytes), address.size) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    return fail(errno == EADDRINUSE ? ErrorCode::kConflict : ErrorCode::kIo,
                fmt::format("cannot listen on {}: {}", address.text, std::strerror(errno)));
  }
  return fd;
}

std::uint16_t port_of(const Descriptor& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Result<Descriptor> start_connecting(const TcpAddress& address) {
  Descriptor fd = new_socket(address);
  if (fd.get() < 0 ||
      (::connect(fd.get(), raw(address.bytes), address.size) != 0 && errno != EINPROGRESS)) {
    return fail(ErrorCode::kIo,
                fmt::format("cannot connect to {}: {}", address.text, std::strerror(errno)));
  }
  no_delay(fd.get());
  return fd;
}

Status connected(int socket) {
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == 0) return {};
  return fail(ErrorCode::kIo, std::strerror(error));
}

void no_delay(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace penstock::sockets
