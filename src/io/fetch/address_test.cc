#include "io/fetch/address.h"

#include <netinet/in.h>

#include <string>

#include <doctest/doctest.h>

namespace penstock {
namespace {

std::string kind(std::string_view text) {
  const auto address = parse_ip(text);
  return address ? std::string(why_not_public(*address)) : "no address";
}

}  // namespace

TEST_CASE("addresses and what they are") {
  const std::pair<std::string_view, std::string_view> table[] = {
      {"0.0.0.0", "this network"},
      {"0.255.255.255", "this network"},
      {"1.0.0.0", ""},
      {"9.255.255.255", ""},
      {"10.0.0.0", "private"},
      {"10.255.255.255", "private"},
      {"11.0.0.0", ""},
      {"100.63.255.255", ""},
      {"100.64.0.0", "carrier-grade NAT"},
      {"100.100.100.200", "carrier-grade NAT"},
      {"100.127.255.255", "carrier-grade NAT"},
      {"100.128.0.0", ""},
      {"126.255.255.255", ""},
      {"127.0.0.1", "loopback"},
      {"127.255.255.255", "loopback"},
      {"128.0.0.0", ""},
      {"168.63.129.15", ""},
      {"168.63.129.16", "cloud metadata"},
      {"168.63.129.17", ""},
      {"169.253.255.255", ""},
      {"169.254.169.254", "link-local"},
      {"169.255.0.0", ""},
      {"172.15.255.255", ""},
      {"172.16.0.0", "private"},
      {"172.31.255.255", "private"},
      {"172.32.0.0", ""},
      {"192.0.0.192", "reserved"},
      {"192.0.1.0", ""},
      {"192.0.2.1", "documentation"},
      {"192.88.99.1", "6to4 relay"},
      {"192.167.255.255", ""},
      {"192.168.0.1", "private"},
      {"192.169.0.0", ""},
      {"198.17.255.255", ""},
      {"198.18.0.0", "benchmarking"},
      {"198.19.255.255", "benchmarking"},
      {"198.20.0.0", ""},
      {"198.51.100.7", "documentation"},
      {"203.0.113.7", "documentation"},
      {"223.255.255.255", ""},
      {"224.0.0.1", "multicast"},
      {"239.255.255.255", "multicast"},
      {"240.0.0.1", "reserved"},
      {"255.255.255.255", "reserved"},
      {"::", "unspecified"},
      {"::1", "loopback"},
      {"::2", "reserved"},
      {"::127.0.0.1", "reserved"},
      {"::8.8.8.8", "reserved"},
      {"::ffff:127.0.0.1", "loopback"},
      {"::ffff:a9fe:a9fe", "link-local"},
      {"::ffff:8.8.8.8", ""},
      {"::ffff:0:8.8.8.8", "reserved"},
      {"64:ff9b::127.0.0.1", "loopback"},
      {"64:ff9b::a9fe:a9fe", "link-local"},
      {"64:ff9b::10.1.2.3", "private"},
      {"64:ff9b::8.8.8.8", ""},
      {"64:ff9b:1::8.8.8.8", "reserved"},
      {"100::1", "reserved"},
      {"1fff::1", "reserved"},
      {"2000::1", ""},
      {"2001::1", "reserved"},
      {"2001:1ff::1", "reserved"},
      {"2001:200::1", ""},
      {"2001:db8::1", "documentation"},
      {"2002:7f00:1::", "6to4"},
      {"2606:4700::1111", ""},
      {"3fff:fff::1", "documentation"},
      {"3fff:1000::1", ""},
      {"4000::1", "reserved"},
      {"5f00::1", "reserved"},
      {"fc00::1", "private"},
      {"fd00:ec2::254", "private"},
      {"fd20:ce::254", "private"},
      {"fe80::1", "link-local"},
      {"febf::1", "link-local"},
      {"fec0::1", "reserved"},
      {"ff02::1", "multicast"},
      {"", "no address"},
      {"127.1", "no address"},
      {"0x7f.0.0.1", "no address"},
      {"1.2.3.4.5", "no address"},
      {"[::1]", "no address"},
      {"fe80::1%eth0", "no address"},
      {"localhost", "no address"},
  };
  for (const auto& [text, expected] : table) {
    CAPTURE(text);
    CHECK(kind(text) == expected);
  }
}

TEST_CASE("a socket's address is the same value as its text") {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(ip_of(reinterpret_cast<const sockaddr&>(v4)) == parse_ip("127.0.0.1"));
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = IN6ADDR_LOOPBACK_INIT;
  CHECK(ip_of(reinterpret_cast<const sockaddr&>(v6)) == parse_ip("::1"));
  sockaddr other{};
  other.sa_family = AF_UNIX;
  CHECK(!ip_of(other));
  CHECK(to_string(*parse_ip("::ffff:1.2.3.4")) == "1.2.3.4");
  CHECK(to_string(*parse_ip("2001:DB8:0::1")) == "2001:db8::1");
}

}  // namespace penstock
