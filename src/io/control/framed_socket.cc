#include "io/control/framed_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "io/control/engine_codec.h"
#include "io/sockets/unix_socket.h"

namespace penstock::control {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";
constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::size_t kHeadBytes = 4;
constexpr std::size_t kTrustedBytes = 4 * kReadBytes;  // room taken on a length's word alone
constexpr int kPollMs = 100;
constexpr int kBacklog = 128;

std::unexpected<Error> system_error(std::string_view what, const std::string& where) {
  return fail(ErrorCode::kIo, fmt::format("{} {}: {}", what, where, std::strerror(errno)));
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> tcp_addresses(const std::string& address, int flags) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" is no address: use unix:/path or host:port", address));
  }
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int code = ::getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &list);
  if (code != 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("cannot resolve {}: {}", address, ::gai_strerror(code)));
  }
  return Addresses(list);
}

// Small frames leave at once; a host that vanished is noticed within about twenty seconds.
void tune_tcp(int fd) {
  const auto set = [fd](int level, int option, int value) {
    ::setsockopt(fd, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 2);
}

// A Unix socket takes what its sender's buffer holds, and when that is full nothing more until it
// is nearly empty: with the usual 208 KiB a long prompt would go in pieces, each waiting for both
// processes to have run. The kernel cuts the wish to net.core.wmem_max.
void tune_unix(int fd) {
  const int bytes = 4 << 20;
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

Status connect_to(int fd, const sockaddr* address, socklen_t size, const std::string& name,
                  const std::atomic<bool>& stop) {
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  if (::connect(fd, address, size) != 0) {
    if (errno != EINPROGRESS) return system_error("cannot connect to", name);
    pollfd ready{fd, POLLOUT, 0};
    while (::poll(&ready, 1, kPollMs) == 0) {
      if (stop) return fail(ErrorCode::kCancelled, "stopped while connecting");
    }
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    errno = error;
    if (error != 0) return system_error("cannot connect to", name);
  }
  ::fcntl(fd, F_SETFL, 0);
  return {};
}

}  // namespace

Result<FramedSocket> FramedSocket::connect(const std::string& address,
                                           const std::atomic<bool>& stop) {
  if (address.starts_with(kUnixPrefix)) {
    TRY(const sockaddr_un to, sockets::unix_address(address.substr(kUnixPrefix.size())));
    Descriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd.get() < 0) return system_error("no socket for", address);
    tune_unix(fd.get());
    TRY_STATUS(
        connect_to(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to, address, stop));
    return FramedSocket(std::move(fd));
  }
  TRY(const Addresses list, tcp_addresses(address, 0));
  Status last = fail(ErrorCode::kIo, "no address for " + address);
  for (const addrinfo* to = list.get(); to != nullptr; to = to->ai_next) {
    Descriptor fd(::socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd.get() < 0) continue;
    last = connect_to(fd.get(), to->ai_addr, to->ai_addrlen, address, stop);
    if (!last) continue;
    tune_tcp(fd.get());
    return FramedSocket(std::move(fd));
  }
  return std::unexpected(std::move(last).error());
}

// Makes `needed` bytes available from begin_ on.
Result<FramedSocket::Read> FramedSocket::fill(std::size_t needed, Wait wait) {
  if (begin_ > 0 && buffer_.size() - begin_ < needed) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  while (buffer_.size() - begin_ < needed) {
    const std::size_t have = buffer_.size();
    // A long frame grows the buffer as its bytes arrive, so a lying length reserves little.
    const std::size_t room = std::max(kReadBytes, buffer_.capacity() - have);
    ssize_t n = 0;
    buffer_.resize_and_overwrite(have + room, [&](char* bytes, std::size_t) {
      n = ::recv(fd_.get(), bytes + have, room, wait == Wait::kNo ? MSG_DONTWAIT : 0);
      return have + static_cast<std::size_t>(std::max<ssize_t>(n, 0));
    });
    if (n == 0) return Read::kEnd;
    if (n < 0 && wait == Wait::kNo && (errno == EAGAIN || errno == EWOULDBLOCK))
      return Read::kNotYet;
    if (n < 0 && errno != EINTR) return system_error("cannot read from", "the peer");
  }
  return Read::kFrame;
}

Result<bool> FramedSocket::read(google::protobuf::MessageLite& message) {
  TRY(const Read got, read(message, Wait::kYes));
  return got == Read::kFrame;
}

Result<FramedSocket::Read> FramedSocket::read_some(google::protobuf::MessageLite& message) {
  return read(message, Wait::kNo);
}

Result<FramedSocket::Read> FramedSocket::read(google::protobuf::MessageLite& message, Wait wait) {
  std::uint8_t head[kHeadBytes];
  TRY(const Read more, fill(sizeof head, wait));
  if (more != Read::kFrame) return more;
  std::memcpy(head, buffer_.data() + begin_, sizeof head);
  const std::size_t size = std::size_t{head[0]} | std::size_t{head[1]} << 8 |
                           std::size_t{head[2]} << 16 | std::size_t{head[3]} << 24;
  if (size > kMessageBytesMax) {
    return fail(ErrorCode::kDataLoss,
                fmt::format("a frame of {} bytes, more than {}", size, kMessageBytesMax));
  }
  // An agent's prompt comes in one read then, to where it stays.
  if (sizeof head + size <= kTrustedBytes) buffer_.reserve(begin_ + sizeof head + size);
  TRY(const Read whole, fill(sizeof head + size, wait));
  if (whole != Read::kFrame) return whole;
  if (!message.ParseFromArray(buffer_.data() + begin_ + sizeof head, static_cast<int>(size))) {
    return fail(ErrorCode::kDataLoss, "a frame whose bytes are no message");
  }
  begin_ += sizeof head + size;
  if (begin_ == buffer_.size()) {
    buffer_.clear();
    begin_ = 0;
    if (buffer_.capacity() > kTrustedBytes + kReadBytes)
      buffer_.shrink_to_fit();  // after a long frame
  }
  return Read::kFrame;
}

Result<std::size_t> FramedSocket::write_some(std::string_view bytes) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n =
        ::send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      sent += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      return system_error("cannot write to", "the peer");
    }
  }
  return sent;
}

Status FramedSocket::write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("cannot write to", "the peer");
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

void FramedSocket::shutdown() {
  ::shutdown(fd_.get(), SHUT_RDWR);
}

void FramedSocket::shutdown_write() {
  ::shutdown(fd_.get(), SHUT_WR);
}

void frame_of(const google::protobuf::MessageLite& message, std::string& out) {
  begin_frame(out);
  message.AppendToString(&out);
  end_frame(out);
}

void begin_frame(std::string& out) {
  out.assign(kHeadBytes, '\0');
}

void end_frame(std::string& out) {
  const std::size_t size = out.size() - kHeadBytes;
  for (std::size_t i = 0; i < kHeadBytes; ++i)
    out[i] = static_cast<char>(size >> (8 * i));
}

Result<Listener> Listener::open(const std::string& address) {
  Listener listener;
  listener.address_ = address;
  if (address.starts_with(kUnixPrefix)) {
    const std::string path = address.substr(kUnixPrefix.size());
    TRY(listener.fd_, sockets::listen_at(path));
    ::fcntl(listener.fd_.get(), F_SETFL, 0);  // accept() waits
    listener.path_ = path;
    return listener;
  }
  TRY(const Addresses list, tcp_addresses(address, AI_PASSIVE));
  listener.fd_ = Descriptor(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(listener.fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(listener.fd_.get(), list->ai_addr, list->ai_addrlen) != 0 ||
      ::listen(listener.fd_.get(), kBacklog) != 0) {
    return system_error("cannot listen on", address);
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(listener.fd_.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  const in_port_t port = bound.ss_family == AF_INET6
                             ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                             : reinterpret_cast<const sockaddr_in&>(bound).sin_port;
  listener.address_ = fmt::format("{}:{}", address.substr(0, address.rfind(':')), ntohs(port));
  return listener;
}

Listener::~Listener() {
  if (!path_.empty() && fd_.get() >= 0) ::unlink(path_.c_str());
}

Result<FramedSocket> Listener::accept() {
  for (;;) {
    Descriptor fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.get() >= 0) {
      if (path_.empty()) tune_tcp(fd.get());
      return FramedSocket(std::move(fd));
    }
    if (errno != EINTR && errno != ECONNABORTED) return system_error("cannot accept on", address_);
  }
}

void Listener::stop() {
  ::shutdown(fd_.get(), SHUT_RDWR);
}

}  // namespace penstock::control
