#include "base/hashed_copy.h"

#include <algorithm>
#include <cstring>

#include "base/xxh3.h"

namespace penstock {

struct HashedCopy::State {
  XXH3_state_t hash;
};

HashedCopy::HashedCopy() : state_(std::make_unique<State>()) {}
HashedCopy::~HashedCopy() = default;

std::uint64_t HashedCopy::copy(std::byte* to, std::span<const std::byte> from) {
  const Xxh3& hasher = xxh3();
  XXH3_64bits_reset(&state_->hash);
  for (std::size_t at = 0; at < from.size(); at += kChunkBytes) {
    const std::size_t bytes = std::min(kChunkBytes, from.size() - at);
    std::memcpy(to + at, from.data() + at, bytes);
    hasher.update(&state_->hash, to + at, bytes);
  }
  return hasher.digest(&state_->hash);
}

}  // namespace penstock
