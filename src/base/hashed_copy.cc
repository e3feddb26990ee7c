#include "base/hashed_copy.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>

#include "base/xxh3.h"

namespace penstock {

struct HashedCopy::State {
  alignas(64) std::array<std::byte, kChunkBytes> chunk;
  XXH3_state_t hash;
};

namespace {

void write_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__SSE2__)
  if (reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
    const std::size_t whole = bytes / 64 * 64;
    for (std::size_t i = 0; i < whole; i += 64) {
      auto* out = reinterpret_cast<__m128i*>(to + i);
      const auto* in = reinterpret_cast<const __m128i*>(from + i);
      const __m128i a = _mm_load_si128(in);
      const __m128i b = _mm_load_si128(in + 1);
      const __m128i c = _mm_load_si128(in + 2);
      const __m128i d = _mm_load_si128(in + 3);
      _mm_stream_si128(out, a);
      _mm_stream_si128(out + 1, b);
      _mm_stream_si128(out + 2, c);
      _mm_stream_si128(out + 3, d);
    }
    to += whole;
    from += whole;
    bytes -= whole;
  }
#endif
  std::memcpy(to, from, bytes);
}

void order_writes() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace

HashedCopy::HashedCopy() : state_(std::make_unique<State>()) {}
HashedCopy::~HashedCopy() = default;

std::uint64_t HashedCopy::copy(std::byte* to, std::span<const std::byte> from) {
  begin();
  add(to, from);
  return finish();
}

void HashedCopy::begin() {
  XXH3_64bits_reset(&state_->hash);
}

void HashedCopy::add(std::byte* to, std::span<const std::byte> from) {
  const Xxh3& hasher = xxh3();
  for (std::size_t at = 0; at < from.size(); at += kChunkBytes) {
    const std::size_t bytes = std::min(kChunkBytes, from.size() - at);
    std::memcpy(state_->chunk.data(), from.data() + at, bytes);
    hasher.update(&state_->hash, state_->chunk.data(), bytes);
    write_past_caches(to + at, state_->chunk.data(), bytes);
  }
}

std::uint64_t HashedCopy::finish() {
  order_writes();
  return xxh3().digest(&state_->hash);
}

}  // namespace penstock
