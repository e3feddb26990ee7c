// A model of one KV cache tier: which blocks are there, least recently used first to go.
//
// match() says how many leading blocks of a prompt are there and marks them used; insert() adds a
// prompt's blocks, evicting others. A block unused for longer than the TTL is not there.
//
// Invariants: at most `capacity` blocks. Cost: a hash look-up per block. Concurrency: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
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
  std::size_t size() const { return index_.size(); }

 private:
  static constexpr std::uint32_t kNone = 0xFFFF'FFFF;
  struct Entry {
    std::uint64_t block = 0;
    Instant used{};
    std::uint32_t newer = kNone;
    std::uint32_t older = kNone;
  };
  void unlink(std::uint32_t at);
  void link_newest(std::uint32_t at);
  void evict_oldest();

  std::size_t capacity_;
  Duration ttl_;
  std::unordered_map<std::uint64_t, std::uint32_t> index_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;
  std::uint32_t newest_ = kNone;
  std::uint32_t oldest_ = kNone;
};

}  // namespace penstock::sim
