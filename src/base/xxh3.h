// XXH3-64 with the widest vectors that this machine has.
//
// libxxhash as Debian builds it hashes 14 GB/s in cache here, the same code inlined by clang 28 and
// with AVX2 41, and every byte of the KV cache is hashed where it is copied to.
//
// Invariants: all variants give the same values, which are libxxhash's. Concurrency: pure.
// Source: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md.
#pragma once

#define XXH_STATIC_LINKING_ONLY  // for the size of XXH3_state_t
#include <xxhash.h>

#include <cstddef>
#include <cstdint>

namespace penstock {

struct Xxh3 {
  std::uint64_t (*hash)(const void* bytes, std::size_t size);
  // As XXH3_64bits_update and XXH3_64bits_digest, after XXH3_64bits_reset. `state` is an
  // XXH3_state_t; a variant's own is laid out alike, but has another name to the compiler.
  void (*update)(void* state, const void* bytes, std::size_t size);
  std::uint64_t (*digest)(const void* state);
  // Copies bytes that don't overlap and updates with what it has written, in one pass when it is
  // the first of the state. From 32 KiB on it writes past the caches, when `to` is aligned to 64.
  void (*copy)(void* state, void* to, const void* from, std::size_t size);
};

extern const Xxh3 kXxh3Baseline;
extern const Xxh3 kXxh3Avx2;    // call only where the machine has AVX2; elsewhere the baseline's
extern const Xxh3 kXxh3Avx512;  // the same with AVX-512F

// The one for this machine.
const Xxh3& xxh3();

}  // namespace penstock
