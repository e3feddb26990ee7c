// A model of one KV cache tier: which blocks are there, least recently used first to go.
//
// match() says how many leading blocks of a prompt are there and marks them used; insert() adds a
// prompt's blocks, evicting others. A block unused for longer than the TTL is not there. Of one
// prompt the last block counts as the least recently used, so that a prefix goes after what needs
// it.
//
// Invariants: at most `capacity` blocks. Cost: a look-up per block in a flat table (open
// addressing, linear probing, backward shift). Concurrency: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"

namespace penstock::sim {

class BlockCache {
 public:
  BlockCache(std::size_t capacity, Duration ttl) : capacity_(capacity), ttl_(ttl) {}

  std::size_t match(std::span<const std::uint64_t> blocks, Instant now);
  // The same without marking anything as used.
  std::size_t peek(std::span<const std::uint64_t> blocks, Instant now) const;
  void insert(std::span<const std::uint64_t> blocks, Instant now);
  std::size_t size() const { return count_; }

 private:
  static constexpr std::uint32_t kNone = 0xFFFF'FFFF;
  struct Entry {
    std::uint64_t block = 0;
    Instant used{};
    std::uint32_t newer = kNone;
    std::uint32_t older = kNone;
  };
  static std::uint64_t hash(std::uint64_t block) {
    const std::uint64_t x = block * 0x9E3779B97F4A7C15ULL;
    return x ^ x >> 32;
  }
  std::uint32_t find(std::uint64_t block) const;  // an entry, or kNone
  void add(std::uint64_t block, std::uint32_t entry);
  void erase(std::uint64_t block);
  void grow();
  void unlink(std::uint32_t at);
  void link_newest(std::uint32_t at);
  void use(std::uint32_t at, Instant now);
  void evict_oldest();

  std::size_t capacity_;
  Duration ttl_;
  std::size_t count_ = 0;
  std::vector<std::uint32_t> slots_;  // entries, or kNone; a power of two of them
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;
  std::uint32_t newest_ = kNone;
  std::uint32_t oldest_ = kNone;
};

}  // namespace penstock::sim
