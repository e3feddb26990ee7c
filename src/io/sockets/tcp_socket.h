// TCP sockets between hosts: non-blocking, without Nagle's delay.
//
// Addresses are HOST:PORT, IPv6 in brackets. Names are looked up in resolve(), which blocks; the
// rest does not. Errors: kInvalidArgument (address), kConflict (port in use), kIo.
// Concurrency: any thread. Source: tcp(7).
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "base/result.h"
#include "io/files/descriptor.h"

namespace penstock::sockets {

struct TcpAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;
  std::string text;  // as it was given
};

Result<TcpAddress> resolve(const std::string& host_port);
Result<Descriptor> listen_on(const TcpAddress& address);
std::uint16_t port_of(const Descriptor& listener);
// The connection may still be under way.
Result<Descriptor> start_connecting(const TcpAddress& address);
// How that went, once it is writable.
Status connected(int socket);
void no_delay(int socket);

}  // namespace penstock::sockets
