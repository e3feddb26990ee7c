#include "io/fetch/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace penstock {
namespace {

constexpr std::array<std::uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr std::array<std::uint8_t, 12> kNat64 = {0, 0x64, 0xff, 0x9b};  // 64:ff9b::/96

struct RangeV4 {
  std::uint32_t first;  // host order
  int bits;             // of the prefix
  std::string_view kind;
};

constexpr std::uint32_t ip(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  return a << 24 | b << 16 | c << 8 | d;
}

constexpr RangeV4 kSpecialV4[] = {
    {ip(0, 0, 0, 0), 8, "this network"},          {ip(10, 0, 0, 0), 8, "private"},
    {ip(100, 64, 0, 0), 10, "carrier-grade NAT"}, {ip(127, 0, 0, 0), 8, "loopback"},
    {ip(168, 63, 129, 16), 32, "cloud metadata"}, {ip(169, 254, 0, 0), 16, "link-local"},
    {ip(172, 16, 0, 0), 12, "private"},           {ip(192, 0, 0, 0), 24, "reserved"},
    {ip(192, 0, 2, 0), 24, "documentation"},      {ip(192, 88, 99, 0), 24, "6to4 relay"},
    {ip(192, 168, 0, 0), 16, "private"},          {ip(198, 18, 0, 0), 15, "benchmarking"},
    {ip(198, 51, 100, 0), 24, "documentation"},   {ip(203, 0, 113, 0), 24, "documentation"},
    {ip(224, 0, 0, 0), 4, "multicast"},           {ip(240, 0, 0, 0), 4, "reserved"},
};

struct RangeV6 {
  std::array<std::uint8_t, 4> first;  // no prefix here is longer than 32 bits
  int bits;
  std::string_view kind;
};

constexpr RangeV6 kSpecialV6[] = {
    {{0xff, 0, 0, 0}, 8, "multicast"},
    {{0xfe, 0x80, 0, 0}, 10, "link-local"},
    {{0xfc, 0, 0, 0}, 7, "private"},
    {{0x20, 0x01, 0, 0}, 23, "reserved"},  // Teredo, ORCHID, benchmarking, ...
    {{0x20, 0x01, 0x0d, 0xb8}, 32, "documentation"},
    {{0x20, 0x02, 0, 0}, 16, "6to4"},
    {{0x3f, 0xff, 0, 0}, 20, "documentation"},
};

std::uint32_t big_endian(const std::uint8_t* bytes) {
  return ip(bytes[0], bytes[1], bytes[2], bytes[3]);
}

bool within(std::uint32_t address, std::uint32_t first, int bits) {
  return ((address ^ first) >> (32 - bits)) == 0;
}

std::string_view why_not_public_v4(std::uint32_t address) {
  for (const auto& range : kSpecialV4) {
    if (within(address, range.first, range.bits)) return range.kind;
  }
  return {};
}

bool has_prefix(const IpAddress& address, const std::array<std::uint8_t, 12>& prefix) {
  return std::equal(prefix.begin(), prefix.end(), address.bytes.begin());
}

}  // namespace

bool IpAddress::is_v4() const {
  return has_prefix(*this, kMapped);
}

std::optional<IpAddress> parse_ip(std::string_view text) {
  const std::string terminated(text);
  IpAddress out;
  if (inet_pton(AF_INET6, terminated.c_str(), out.bytes.data()) == 1) return out;
  std::ranges::copy(kMapped, out.bytes.begin());
  if (inet_pton(AF_INET, terminated.c_str(), out.bytes.data() + kMapped.size()) == 1) return out;
  return std::nullopt;
}

std::optional<IpAddress> ip_of(const sockaddr& address) {
  IpAddress out;
  if (address.sa_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &address, sizeof v6);
    std::memcpy(out.bytes.data(), &v6.sin6_addr, out.bytes.size());
    return out;
  }
  if (address.sa_family != AF_INET) return std::nullopt;
  sockaddr_in v4{};
  std::memcpy(&v4, &address, sizeof v4);
  std::ranges::copy(kMapped, out.bytes.begin());
  std::memcpy(out.bytes.data() + kMapped.size(), &v4.sin_addr, sizeof v4.sin_addr);
  return out;
}

std::string to_string(const IpAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  const bool v4 = address.is_v4();
  inet_ntop(v4 ? AF_INET : AF_INET6, address.bytes.data() + (v4 ? kMapped.size() : 0), text,
            sizeof text);
  return text;
}

std::string_view why_not_public(const IpAddress& address) {
  if (address.is_v4() || has_prefix(address, kNat64))
    return why_not_public_v4(big_endian(address.bytes.data() + kMapped.size()));
  const std::uint32_t head = big_endian(address.bytes.data());
  for (const auto& range : kSpecialV6) {
    if (within(head, big_endian(range.first.data()), range.bits)) return range.kind;
  }
  if (within(head, 0x20000000, 3)) return {};  // 2000::/3, all that is given out
  const bool zeros =
      std::all_of(address.bytes.begin(), address.bytes.end() - 1, [](auto b) { return b == 0; });
  if (zeros && address.bytes.back() <= 1)
    return address.bytes.back() == 1 ? "loopback" : "unspecified";
  return "reserved";
}

}  // namespace penstock
