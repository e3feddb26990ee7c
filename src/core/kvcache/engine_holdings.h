// EngineHoldings: what one publisher of KV events (a rank of an engine) holds, under our keys.
//
// The engine names its blocks by hashes that only it can compute. Kept is, for each of them, our
// key of the prefix that ends with it: a stored block's key follows from its parent's and its
// tokens, a removed one's is looked up. So the engine's block size, hash algorithm and seed don't
// matter. What changes comes out as keys with tier bits, for an EngineIndex.
//
// Blocks that don't end with a unit of 16 tokens (page sizes below 16) have no key; the tokens
// since the last unit are kept for them, and the block that ends the unit gets the key. Hybrid
// models have a cache group per kind of layer; only a group of full attention proves a prefix, so
// the first such group that is seen counts and the others are left out (counted).
//
// Invariants: a block is known while some tier holds it. Blocks whose parent is unknown, or that
// find no room, are not taken (counted), and so are their descendants: what is known begins at the
// root. Units and shapes: 16 bytes a block at load 0.7..0.875.
// Errors: none; events that make no sense are counted. Concurrency: one thread.
// Source: docs/kv-events.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/kvcache/routing_chain.h"

namespace penstock::kvcache {

// Bits of a tier: 0 device, 1 host, 2 disk, 3 cluster.
std::uint8_t tier_bit(KvTier tier);

// One block more or less in some tiers.
struct HoldingChange {
  RoutingKey key = 0;
  std::uint8_t tiers = 0;
  bool stored = false;
};

struct HoldingCounts {
  std::uint64_t stored = 0;        // blocks
  std::uint64_t removed = 0;       // blocks
  std::uint64_t cleared = 0;       // times
  std::uint64_t orphans = 0;       // blocks whose parent is not known, or removed unknown ones
  std::uint64_t other_groups = 0;  // events of groups that prove nothing
  std::uint64_t refused = 0;       // blocks for which there was no room
  std::uint64_t malformed = 0;     // events whose numbers don't fit together
};

class EngineHoldings {
 public:
  explicit EngineHoldings(RoutingChain chain) : chain_(chain) {}

  // What an event did: changes to add, after a purge if `cleared`.
  struct Outcome {
    bool cleared = false;
    std::vector<HoldingChange> changes;
  };
  // Takes a message; `out` is overwritten, its memory reused. New blocks are taken while
  // memory_bytes() is below `bytes_max`.
  void apply(const EngineKvBatch& batch, std::size_t bytes_max, Outcome& out);
  void purge();

  std::size_t blocks() const { return used_; }
  std::size_t memory_bytes() const;
  const HoldingCounts& counts() const { return counts_; }
  // Tokens between places where a key is known to be, if the prefix is held: the least common
  // multiple of block size and unit. 0: no block yet.
  std::uint32_t stride() const { return stride_; }

 private:
  // key | tiers; 0: unused.
  struct Block {
    std::uint64_t hash = 0;
    std::uint64_t value = 0;
  };
  struct Tail {
    std::uint8_t count = 0;
    std::array<TokenId, kRoutingUnit - 1> tokens{};
  };
  struct Cursor {
    RoutingKey key = 0;
    Tail tail;
  };

  bool counts_for_prefix(const EngineKvEvent& event);
  void stored(const EngineKvBatch& batch, const EngineKvEvent& event, Outcome& out);
  void stored_again(std::span<const std::uint64_t> hashes, std::uint8_t tier, Outcome& out);
  std::optional<Cursor> begin(const EngineKvEvent& event) const;
  void walk_whole(const EngineKvBatch& batch, const EngineKvEvent& event, RoutingKey from,
                  Outcome& out);
  void walk_parts(const EngineKvBatch& batch, const EngineKvEvent& event, Cursor cursor,
                  Outcome& out);
  void removed(const EngineKvBatch& batch, const EngineKvEvent& event, Outcome& out);
  void learn_stride(std::uint32_t block_tokens);

  std::uint32_t home_of(std::uint64_t hash) const;
  void prefetch(std::uint64_t hash) const;
  std::uint32_t find(std::uint64_t hash) const;  // its place, or the unused one where it would be
  // False: no room.
  bool hold(std::uint64_t hash, RoutingKey key, std::uint8_t tier, bool keyed, Outcome& out);
  void grow();
  void erase(std::uint32_t at);

  RoutingChain chain_;
  std::unique_ptr<Block[]> blocks_;
  std::uint32_t size_ = 0;
  std::uint32_t used_ = 0;
  std::size_t bytes_max_ = 0;
  std::unordered_map<std::uint64_t, Tail> tails_;  // of blocks that end inside a unit
  std::optional<std::uint32_t> group_;             // the one that counts; none: not known yet
  std::uint32_t stride_ = 0;
  std::vector<RoutingKey> keys_;  // scratch
  HoldingCounts counts_;
};

}  // namespace penstock::kvcache
