// CheckedCopy: copies memory in pieces and computes checksum64 of what has arrived.
//
// 8 KiB are copied and then hashed where they lie now, in the first-level cache, so what is hashed
// is what was copied whoever changes the source meanwhile. 8 KiB was the best of 1 to 256 KiB here:
// 0.8 to 0.9 of memcpy's speed, while going through a buffer and past the caches (base/hashed_copy)
// gave 0.5.
//
// Concurrency: one thread. Source: `penstock bench transfer`; docs/design/0006-transport.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/xxh3.h"

namespace penstock::transport {

class CheckedCopy {
 public:
  CheckedCopy() { begin(); }

  void begin() { XXH3_64bits_reset(&hash_); }
  void add(std::byte* to, std::span<const std::byte> from) {
    for (std::size_t at = 0; at < from.size(); at += kStepBytes) {
      const std::size_t bytes = std::min(kStepBytes, from.size() - at);
      std::memcpy(to + at, from.data() + at, bytes);
      arrived(to + at, bytes);
    }
  }
  // Bytes that came otherwise.
  void arrived(const std::byte* bytes, std::size_t count) { xxh3().update(&hash_, bytes, count); }
  std::uint64_t checksum() const { return xxh3().digest(&hash_); }

 private:
  static constexpr std::size_t kStepBytes = 8192;
  alignas(64) XXH3_state_t hash_;
};

}  // namespace penstock::transport
