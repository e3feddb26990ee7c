// One variant of Xxh3, compiled into the source that includes this: define XXH3_VARIANT, its name.
// All of xxHash's functions are static there, so that variants don't meet at link time.
#pragma once

#define XXH_INLINE_ALL
#include "base/xxh3.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace penstock {
namespace {

// The eight 64-bit lanes of XXH3's long loop; the compiler makes 128, 256 or 512 bits at a time of
// them.
using Lanes = std::uint64_t __attribute__((vector_size(64)));

constexpr std::size_t kStripe = 64;
constexpr std::size_t kStripes = 16;  // of a block, with the default secret
constexpr std::size_t kBlock = kStripe * kStripes;
constexpr std::size_t kSecretStep = 8;
constexpr std::size_t kTailMin = 256 + kStripe + 1;  // more than the state's buffer holds
constexpr std::size_t kPieceBytes = 8192;            // stays in the first-level cache
constexpr std::size_t kPastCachesMin = 32 << 10;
constexpr std::size_t kPrefetch = 2048;

// At any alignment; by reference, since 512-bit arguments have no ABI without AVX-512.
void load(Lanes& lanes, const void* from) {
  std::memcpy(&lanes, from, sizeof lanes);
}

// A stripe goes through registers once: what is hashed is what is written.
template <bool kPastCaches>
void copy_block(Lanes& sums, unsigned char* to, const unsigned char* from) {
  Lanes acc = sums;
  Lanes key;
  const unsigned char* const secret = XXH3_kSecret;
#pragma clang loop unroll(full)
  for (std::size_t i = 0; i < kStripes; ++i) {
    __builtin_prefetch(from + i * kStripe + kPrefetch);
    Lanes data;
    load(data, from + i * kStripe);
    if constexpr (kPastCaches)
      __builtin_nontemporal_store(data, reinterpret_cast<Lanes*>(to + i * kStripe));
    else
      std::memcpy(to + i * kStripe, &data, sizeof data);
    load(key, secret + i * kSecretStep);
    const Lanes keyed = data ^ key;
    acc += (keyed & 0xffffffff) * (keyed >> 32);
    acc += __builtin_shufflevector(data, data, 1, 0, 3, 2, 5, 4, 7, 6);
  }
  acc ^= acc >> 47;
  load(key, secret + sizeof XXH3_kSecret - kStripe);
  acc ^= key;
  sums = acc * XXH_PRIME32_1;
}

void copy_in_pieces(XXH3_state_t* state, unsigned char* to, const unsigned char* from,
                    std::size_t size) {
  for (std::size_t at = 0; at < size; at += kPieceBytes) {
    const std::size_t bytes = std::min(kPieceBytes, size - at);
    std::memcpy(to + at, from + at, bytes);
    XXH3_64bits_update(state, to + at, bytes);
  }
}

// The first blocks of a run in one pass; the rest is the library's, which needs the last bytes.
void copy_and_hash(void* of, void* target, const void* source, std::size_t size) {
  auto* const state = static_cast<XXH3_state_t*>(of);
  auto* to = static_cast<unsigned char*>(target);
  const auto* from = static_cast<const unsigned char*>(source);
  if (state->totalLen == 0 && size > kTailMin + kBlock) {
    const std::size_t blocks = (size - kTailMin) / kBlock;
    const bool past_caches =
        size >= kPastCachesMin && reinterpret_cast<std::uintptr_t>(to) % kStripe == 0;
    Lanes acc;
    load(acc, state->acc);
    for (std::size_t i = 0; i < blocks; ++i, to += kBlock, from += kBlock) {
      if (past_caches)
        copy_block<true>(acc, to, from);
      else
        copy_block<false>(acc, to, from);
    }
#if defined(__x86_64__)
    if (past_caches) __builtin_ia32_sfence();
#else
    if (past_caches) std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
    std::memcpy(state->acc, &acc, sizeof acc);
    state->totalLen = blocks * kBlock;
    size -= blocks * kBlock;
  }
  copy_in_pieces(state, to, from, size);
}

}  // namespace

const Xxh3 XXH3_VARIANT = {
    [](const void* bytes, std::size_t size) -> std::uint64_t { return XXH3_64bits(bytes, size); },
    [](void* state, const void* bytes, std::size_t size) {
      XXH3_64bits_update(static_cast<XXH3_state_t*>(state), bytes, size);
    },
    [](const void* state) -> std::uint64_t {
      return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state));
    },
    copy_and_hash};

}  // namespace penstock
