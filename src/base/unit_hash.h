// XXH3 of many short units of bytes at once, and the mix that chains their hashes.
//
// A call of libxxhash per unit costs as much as the hash itself; here it is inlined, and the
// hashes of units, which don't depend on each other, overlap. In chain_units() the chain, which
// waits for its multiplications, overlaps with them too, and bytes are asked for before they are
// needed: what the processor fetches ahead by itself stops at pages, and a prompt has many.
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

// A link without these low bits, and never 0.
inline std::uint64_t link_without(std::uint64_t spare_bits, std::uint64_t hash) {
  const std::uint64_t link = hash & ~spare_bits;
  return link == 0 ? spare_bits + 1 : link;
}

struct UnitChain {
  std::uint64_t seed = 0;
  std::uint64_t spare_bits = 0;  // 2^n - 1
};
// out[i] = link_without(spare_bits, mix64(out[i - 1], hash of unit i)), the first after `from`.
// `bytes`: [units, 64], any alignment; `out`: [units]. Cost: 4.5 ns a unit in cache, 7.5 from
// memory.
void chain_units(const void* bytes, std::size_t units, const UnitChain& chain, std::uint64_t from,
                 std::uint64_t* out);

}  // namespace penstock
