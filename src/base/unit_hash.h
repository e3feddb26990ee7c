// XXH3 of many short units of bytes at once, and the mix that chains their hashes.
//
// A call of libxxhash per unit costs as much as the hash itself; here it is inlined, and the
// hashes of units, which don't depend on each other, overlap.
//
// Invariants: hash_units gives XXH3_64bits_withSeed of each unit. Concurrency: pure.
// Source: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md (mix: its 128-bit multiply-fold).
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

inline constexpr std::size_t kHashUnitBytes = 64;

// `bytes`: [units, 64], any alignment; `out`: [units].
void hash_units(const void* bytes, std::size_t units, std::uint64_t seed, std::uint64_t* out);

// For values that are hashes already: five cycles, so a chain of them is no slower than what it
// chains. Not against an adversary who can choose both.
inline std::uint64_t mix64(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product =
      static_cast<Wide>(a ^ 0x9E3779B185EBCA87) * static_cast<Wide>(b ^ 0xC2B2AE3D27D4EB4F);
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

}  // namespace penstock
