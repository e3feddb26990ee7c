// HashedCopy: copies memory and hashes the bytes that it has copied, in one pass.
//
// A run's bytes go through registers once, where they are hashed and from where they are written
// (base/xxh3_variant.h). So the source is read once, and what is hashed is what is written, whoever
// changes the source meanwhile. From 32 KiB on writes go past the caches, which saves reading the
// target first. Measured against memcpy, both out of cache: 1.4 to 1.5 from 64 KiB on, 0.92 for 8
// KiB; copying 8 KiB and hashing it in cache, as pieces after the first of a run still are, 0.8.
//
// copy() is one run; begin(), add() and arrived() are one in pieces, as bytes come.
//
// Units and shapes: bytes; any alignment. The hash is checksum64 of base/hash.h. Concurrency: one
// object per thread. Source: design.md section 6; `penstock bench kv`, `penstock bench transfer`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/xxh3.h"

namespace penstock {

class HashedCopy {
 public:
  HashedCopy() { begin(); }

  // Returns the checksum of what is at `to` afterwards. Other threads see the bytes once they see
  // any later write of this one.
  std::uint64_t copy(std::byte* to, std::span<const std::byte> from) {
    begin();
    add(to, from);
    return checksum();
  }

  void begin() { XXH3_64bits_reset(&hash_); }
  void add(std::byte* to, std::span<const std::byte> from) {
    xxh3().copy(&hash_, to, from.data(), from.size());
  }
  // Bytes that came otherwise.
  void arrived(const std::byte* bytes, std::size_t count) { xxh3().update(&hash_, bytes, count); }
  // Of all since begin().
  std::uint64_t checksum() const { return xxh3().digest(&hash_); }

 private:
  alignas(64) XXH3_state_t hash_;
};

}  // namespace penstock
