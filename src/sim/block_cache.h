// A model of one KV cache tier: which blocks are there, least recently used first to go.
//
// match() says how many leading blocks of a prompt are there and marks them used; insert() adds a
// prompt's blocks, evicting others. A block unused for longer than the TTL is not there. Of one
// prompt the last block counts as the least recently used, so that a prefix goes after what needs
// it. A tier without limit and without TTL (Duration::max()) remembers what it was given and
// nothing else.
//
// Invariants: at most `capacity` blocks. Blocks are small numbers (sim/block_ids.h): four bytes for
// each up to the greatest, one bit in a tier without limits. Cost: a look-up per block in an array.
// Concurrency: one thread.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/units.h"

namespace penstock::sim {

inline constexpr std::size_t kUnlimitedBlocks = std::numeric_limits<std::uint32_t>::max();

class BlockCache {
 public:
  BlockCache(std::size_t capacity, Duration ttl)
      : capacity_(capacity),
        ttl_(ttl),
        forgets_(capacity < kUnlimitedBlocks || ttl < Duration::max()) {}

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
  std::uint32_t find(std::uint64_t block) const {  // an entry, or kNone
    return block < slots_.size() ? slots_[block] : kNone;
  }
  void remember(std::span<const std::uint64_t> blocks);
  void unlink(std::uint32_t at);
  void link_newest(std::uint32_t at);
  void use(std::uint32_t at, Instant now);
  void evict_oldest();

  std::size_t capacity_;
  Duration ttl_;
  bool forgets_;
  std::size_t count_ = 0;
  std::vector<bool> given_;           // of a tier that never forgets
  std::vector<std::uint32_t> slots_;  // of another one: entries, or kNone, by block
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;
  std::uint32_t newest_ = kNone;
  std::uint32_t oldest_ = kNone;
};

}  // namespace penstock::sim
