#include "base/seeded_hash.h"

#include <xxhash.h>

namespace penstock {

std::uint64_t seeded_hash(std::string_view bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace penstock
