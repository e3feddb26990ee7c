#include "base/hash.h"
#include "base/sha256.h"

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

TEST_CASE("SHA-256 equals the standard's example") {
  CHECK(sha256("abc")[0] == 0xba);
  CHECK(sha256("abc")[31] == 0xad);
  CHECK(sha256("")[0] == 0xe3);
}

}  // namespace penstock
