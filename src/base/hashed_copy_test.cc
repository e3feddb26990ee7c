#include "base/hashed_copy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/hash.h"

namespace penstock {
namespace {

TEST_CASE("a hashed copy copies all bytes, nothing else, and has their checksum") {
  std::vector<std::byte> source(3 * 4096 + 200);
  for (std::size_t i = 0; i < source.size(); ++i)
    source[i] = static_cast<std::byte>(i * 131 + i / 251);
  HashedCopy copier;
  for (const std::size_t bytes : {0UL, 1UL, 15UL, 16UL, 63UL, 64UL, 65UL, 240UL, 241UL, 4095UL,
                                  4096UL, 4097UL, 8192UL, 12288UL + 77}) {
    for (const std::size_t from : {0UL, 1UL, 16UL}) {
      for (const std::size_t to : {64UL, 65UL, 80UL, 100UL}) {
        std::vector<std::byte> target(to + bytes + 64, std::byte{0xee});
        const std::span<const std::byte> part(source.data() + from, bytes);
        CHECK(copier.copy(target.data() + to, part) == checksum64(part));
        CHECK(std::ranges::equal(std::span(target).subspan(to, bytes), part));
        CHECK(std::ranges::count(std::span(target).first(to), std::byte{0xee}) ==
              static_cast<std::ptrdiff_t>(to));
        CHECK(std::ranges::count(std::span(target).last(64), std::byte{0xee}) == 64);
      }
    }
  }
}

}  // namespace
}  // namespace penstock
