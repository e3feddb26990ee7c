#include "base/unit_hash.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace penstock {

void hash_units(const void* bytes, std::size_t units, std::uint64_t seed, std::uint64_t* out) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  for (std::size_t i = 0; i < units; ++i, at += kHashUnitBytes)
    out[i] = XXH3_64bits_withSeed(at, kHashUnitBytes, seed);
}

void chain_units(const void* bytes, std::size_t units, const UnitChain& chain, std::uint64_t from,
                 std::uint64_t* out) {
  constexpr std::size_t kAhead = 4096;  // 64 units of 4.5 ns: longer than memory takes
  const auto* at = static_cast<const unsigned char*>(bytes);
  std::size_t left = units * kHashUnitBytes;
  for (std::size_t i = 0; i < units; ++i, at += kHashUnitBytes, left -= kHashUnitBytes) {
    __builtin_prefetch(at + std::min(kAhead, left));
    from = link_without(chain.spare_bits,
                        mix64(from, XXH3_64bits_withSeed(at, kHashUnitBytes, chain.seed)));
    out[i] = from;
  }
}

}  // namespace penstock
