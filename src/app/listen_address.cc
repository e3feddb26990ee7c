#include "app/listen_address.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>

namespace penstock {

Status check_port_free(const std::string& host, std::uint32_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* raw = nullptr;
  const int resolved = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &raw);
  if (resolved != 0)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("cannot listen on {}: {}", host, ::gai_strerror(resolved)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> address(raw, &::freeaddrinfo);
  const int fd = ::socket(raw->ai_family, raw->ai_socktype | SOCK_CLOEXEC, raw->ai_protocol);
  const int on = 1;
  int error = 0;
  if (fd < 0 || ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd, raw->ai_addr, raw->ai_addrlen) != 0 || ::listen(fd, 1) != 0)
    error = errno;
  if (fd >= 0) ::close(fd);
  if (error == 0) return {};
  if (error == EADDRINUSE)
    return fail(
        ErrorCode::kConflict,
        fmt::format("port {} on {} is in use by another process; choose another with --port "
                    "(0 picks a free one)",
                    port, host),
        "listen.port");
  return fail(ErrorCode::kIo,
              fmt::format("cannot listen on {} port {}: {}", host, port,
                          std::generic_category().message(error)),
              "listen.host");
}

std::string listen_url(const std::string& host, std::uint32_t port, bool tls) {
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}", tls ? "https" : "http", v6 ? "[" : "", host, v6 ? "]" : "",
                     port);
}

}  // namespace penstock
