// ChainCache: keys of prompts seen before, so that the next turn hashes only what is new.
//
// A run is a stretch of consecutive blocks with their tokens, media and keys. A prompt is walked
// from its root: the run that begins at the current key with the prompt's next block is looked up
// by XXH3, and its tokens are compared, not trusted; as far as they are equal its keys are taken.
// Where nothing is known, blocks are hashed and become a new run: each turn of a conversation
// adds one. Prompts that part in the middle of a run share its first part, since a run may begin
// at any key.
//
// Invariants: the result always equals KeyChain::chain. Memory stays within `bytes_max`; runs
// used longest ago go first, a run before the one that it continues. A prompt that needs more
// than half of the memory is hashed and not kept.
// Units and shapes: 272 bytes a block of 64 tokens and 300 a run. About 30 ns a known block out
// of cache, 250 a new one.
// Concurrency: one object per thread, with its KeyChain. Source: design.md section 6.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/kvcache/key_chain.h"

namespace penstock::kvcache {

class ChainCache {
 public:
  explicit ChainCache(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  // Keys of the whole blocks of a prompt; `media` ascends by offset.
  std::vector<BlockKey> chain(KeyChain& hasher, const BlockKey& root, std::uint32_t block_tokens,
                              std::span<const TokenId> tokens, std::span<const KvMedia> media = {},
                              const KeysTold& told = {});

  std::size_t bytes() const { return bytes_; }
  std::uint64_t known_blocks() const { return known_; }    // keys taken from the cache
  std::uint64_t hashed_blocks() const { return hashed_; }  // keys computed

 private:
  struct Run {
    std::uint64_t name = 0;  // hash of `parent` and the first block
    BlockKey parent;
    std::vector<TokenId> tokens;
    std::vector<KvMedia> media;  // offsets count from the run's start
    std::vector<BlockKey> keys;
    std::size_t bytes() const;
  };
  using Runs = std::list<Run>;

  // A prompt cut to whole blocks, and where the walk is.
  struct Walk;
  Runs::iterator find(const Walk& walk, const BlockKey& parent);
  void keep(const Walk& walk, std::vector<Runs::iterator>& used, std::size_t first,
            std::size_t last);
  void evict();

  std::size_t bytes_max_;
  std::size_t bytes_ = 0;
  std::uint64_t known_ = 0;
  std::uint64_t hashed_ = 0;
  Runs runs_;  // used last in front
  std::unordered_map<std::uint64_t, Runs::iterator> by_name_;
};

}  // namespace penstock::kvcache
