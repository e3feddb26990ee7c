#include "base/xxh3.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "base/hash.h"
#include "base/rng.h"

namespace penstock {

TEST_CASE("all variants give libxxhash's values, whole and in pieces, at every alignment") {
  Rng rng(5);
  std::vector<unsigned char> bytes(70'000);
  for (unsigned char& byte : bytes)
    byte = static_cast<unsigned char>(rng.next_u64());
  std::vector<const Xxh3*> variants = {&kXxh3Baseline, &xxh3()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) variants.push_back(&kXxh3Avx2);
#endif
  for (std::size_t round = 0; round < 3000; ++round) {
    const std::size_t at = rng.below(64);
    // Small sizes have code of their own.
    const std::size_t size = rng.below(round % 3 == 0 ? 300 : bytes.size() - at);
    const std::uint64_t expected = XXH3_64bits(bytes.data() + at, size);
    for (const Xxh3* variant : variants) {
      REQUIRE(variant->hash(bytes.data() + at, size) == expected);
      XXH3_state_t state;
      XXH3_64bits_reset(&state);
      for (std::size_t done = 0; done < size;) {
        const std::size_t piece = 1 + rng.below(size - done);
        variant->update(&state, bytes.data() + at + done, piece);
        done += piece;
      }
      REQUIRE(variant->digest(&state) == expected);
      // A copy, and whatever comes after it.
      const std::size_t first = round % 2 == 0 ? size : rng.below(size + 1);
      std::vector<unsigned char> copy(size + 128, 0xee);
      const std::size_t to = round % 4 == 0
                                 ? (64 - reinterpret_cast<std::uintptr_t>(copy.data()) % 64) % 64
                                 : rng.below(64);
      XXH3_64bits_reset(&state);
      variant->copy(&state, copy.data() + to, bytes.data() + at, first);
      variant->copy(&state, copy.data() + to + first, bytes.data() + at + first, size - first);
      REQUIRE(variant->digest(&state) == expected);
      REQUIRE(std::equal(copy.begin() + static_cast<std::ptrdiff_t>(to),
                         copy.begin() + static_cast<std::ptrdiff_t>(to + size),
                         bytes.begin() + static_cast<std::ptrdiff_t>(at)));
      REQUIRE(std::count(copy.begin(), copy.end(), 0xee) >= 128);
    }
    REQUIRE(checksum64(std::as_bytes(std::span(bytes).subspan(at, size))) == expected);
  }
}

}  // namespace penstock
