// IP addresses as values, and whether one may be asked on behalf of a stranger.
//
// A server that fetches what its users name must not reach what only the server can: itself, its
// private networks, the cloud's metadata. So what is allowed is the public unicast space; all that
// is special is refused, and an IPv4 address inside an IPv6 one is judged as itself.
//
// Errors: values only. Concurrency: pure. Source: the IANA special-purpose address registries
// (RFC 6890 and successors), RFC 6052 (NAT64), RFC 4291; 168.63.129.16 is a cloud's own service.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace penstock {

// Sixteen bytes in network order; an IPv4 address is its mapped form ::ffff:a.b.c.d.
struct IpAddress {
  std::array<std::uint8_t, 16> bytes{};

  bool is_v4() const;
  bool operator==(const IpAddress&) const = default;
};

// "192.0.2.1" or "2001:db8::1", without port, brackets or zone.
std::optional<IpAddress> parse_ip(std::string_view text);
// Nothing for families other than IPv4 and IPv6.
std::optional<IpAddress> ip_of(const sockaddr& address);
std::string to_string(const IpAddress& address);

// What kind of special address this is ("loopback", "private", ...); empty for a public one.
std::string_view why_not_public(const IpAddress& address);

}  // namespace penstock
