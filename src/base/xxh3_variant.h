// One variant of Xxh3, compiled into the source that includes this: define XXH3_VARIANT, its name.
// All of xxHash's functions are static there, so that variants don't meet at link time.
#pragma once

#define XXH_INLINE_ALL
#include "base/xxh3.h"

namespace penstock {

const Xxh3 XXH3_VARIANT = {
    [](const void* bytes, std::size_t size) -> std::uint64_t { return XXH3_64bits(bytes, size); },
    [](void* state, const void* bytes, std::size_t size) {
      XXH3_64bits_update(static_cast<XXH3_state_t*>(state), bytes, size);
    },
    [](const void* state) -> std::uint64_t {
      return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state));
    }};

}  // namespace penstock
