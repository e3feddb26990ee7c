// BlockCache: which blocks of prompts an emulated rank's prefix cache holds, oldest out first.
//
// A block is 16 tokens, named by a hash of the block before it and of its own tokens; the first one
// is made from a seed, as the engines' is from PYTHONHASHSEED. As in the engines, a prompt's blocks
// are used together and its last ones are given up first.
//
// Invariants: at most blocks_max; what is held of a prompt is a prefix. Concurrency: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/xxh3.h"
#include "domain/tokens.h"

namespace penstock::emulate {

class BlockCache {
 public:
  static constexpr std::uint64_t kBlockTokens = 16;

  explicit BlockCache(std::size_t blocks_max) : blocks_max_(blocks_max) {}

  struct Used {
    std::size_t held = 0;                // leading blocks of it that were there
    std::vector<std::uint64_t> names;    // of all its whole blocks
    std::vector<std::uint64_t> dropped;  // blocks that had to go, of this prompt too
  };
  // The prompt is computed: all its whole blocks are held from now on, as far as there is room.
  // `root`: what else their KV depends on.
  Used use(std::span<const TokenId> prompt, std::uint64_t root) {
    Used used;
    std::uint64_t name = root;
    for (std::size_t at = 0; at + kBlockTokens <= prompt.size(); at += kBlockTokens) {
      const std::uint64_t parts[2] = {
          name, xxh3().hash(prompt.data() + at, kBlockTokens * sizeof(TokenId))};
      name = xxh3().hash(parts, sizeof parts);
      used.names.push_back(name);
    }
    while (used.held < used.names.size() && used_.contains(used.names[used.held]))
      ++used.held;
    for (auto last = used.names.rbegin(); last != used.names.rend(); ++last) {
      auto& when = used_[*last];
      if (when != 0) by_use_.erase(when);
      when = ++now_;
      by_use_[when] = *last;
    }
    for (; used_.size() > blocks_max_; by_use_.erase(by_use_.begin())) {
      used.dropped.push_back(by_use_.begin()->second);
      used_.erase(by_use_.begin()->second);
    }
    return used;
  }

 private:
  std::size_t blocks_max_;
  std::uint64_t now_ = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> used_;  // block -> when
  std::map<std::uint64_t, std::uint64_t> by_use_;
};

}  // namespace penstock::emulate
