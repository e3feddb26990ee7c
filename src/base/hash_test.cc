#include "base/hash.h"

#include <vector>

#include "base/sha256.h"
#include "base/unit_hash.h"

#include <doctest/doctest.h>

namespace penstock {

TEST_CASE("the keyed hash depends on secret, content and framing") {
  std::array<std::uint8_t, 32> secret{};
  KeyedHasher a(secret);
  const Hash128 empty = a.hash("");
  CHECK(a.hash("") == empty);
  CHECK(a.hash("x") != empty);
  secret[31] = 1;
  KeyedHasher b(secret);
  CHECK(b.hash("") != empty);

  a.begin();
  a.add_field("ab");
  a.add_field("c");
  const Hash128 ab_c = a.finish();
  a.begin();
  a.add_field("a");
  a.add_field("bc");
  CHECK(a.finish() != ab_c);
}

TEST_CASE("a chain of units mixes their hashes one after the other, wherever the bytes lie") {
  constexpr std::size_t kUnits = 300;
  std::vector<unsigned char> bytes(kUnits * kHashUnitBytes + 3);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<unsigned char>(i * i >> 3);
  for (const std::size_t offset : {0U, 3U}) {
    for (const std::size_t units : {std::size_t{0}, std::size_t{1}, std::size_t{65}, kUnits}) {
      std::vector<std::uint64_t> hashes(units);
      std::vector<std::uint64_t> chain(units);
      hash_units(bytes.data() + offset, units, 9, hashes.data());
      chain_units(bytes.data() + offset, units, {9, 15}, 77, chain.data());
      std::uint64_t link = 77;
      for (std::size_t i = 0; i < units; ++i) {
        link = link_without(15, mix64(link, hashes[i]));
        CHECK(chain[i] == link);
        CHECK((link & 15) == 0);
      }
    }
  }
  CHECK(link_without(15, 3) == 16);
}

TEST_CASE("SHA-256 equals the standard's example") {
  CHECK(sha256("abc")[0] == 0xba);
  CHECK(sha256("abc")[31] == 0xad);
  CHECK(sha256("")[0] == 0xe3);
}

}  // namespace penstock
