#include "base/unit_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace penstock {

void hash_units(const void* bytes, std::size_t units, std::uint64_t seed, std::uint64_t* out) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  for (std::size_t i = 0; i < units; ++i, at += kHashUnitBytes)
    out[i] = XXH3_64bits_withSeed(at, kHashUnitBytes, seed);
}

}  // namespace penstock
