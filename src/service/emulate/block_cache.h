// BlockCache: which blocks of prompts an emulated rank's prefix cache holds, oldest out first.
//
// A block is 64 bytes of the prompt's JSON text, 16 of the emulator's tokens, named by a hash of
// all text up to its end. As in the engines, a prompt's blocks are used together and its last ones
// are given up first.
//
// Invariants: at most blocks_max; what is held of a prompt is a prefix. Concurrency: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/xxh3.h"

namespace penstock::emulate {

class BlockCache {
 public:
  static constexpr std::size_t kBlockBytes = 64;
  static constexpr std::uint64_t kBlockTokens = 16;

  explicit BlockCache(std::size_t blocks_max) : blocks_max_(blocks_max) {}

  // The prompt is computed: its leading blocks that were held, and all whole ones are from now on.
  std::size_t use(std::string_view prompt) {
    std::vector<std::uint64_t> names;
    std::uint64_t name = 0;
    for (std::size_t at = 0; at + kBlockBytes <= prompt.size(); at += kBlockBytes) {
      const std::uint64_t parts[2] = {name, xxh3().hash(prompt.data() + at, kBlockBytes)};
      name = xxh3().hash(parts, sizeof parts);
      names.push_back(name);
    }
    std::size_t held = 0;
    while (held < names.size() && used_.contains(names[held]))
      ++held;
    for (auto last = names.rbegin(); last != names.rend(); ++last) {
      auto& used = used_[*last];
      if (used != 0) by_use_.erase(used);
      used = ++now_;
      by_use_[used] = *last;
    }
    for (; used_.size() > blocks_max_; by_use_.erase(by_use_.begin()))
      used_.erase(by_use_.begin()->second);
    return held;
  }
  std::size_t blocks() const { return used_.size(); }

 private:
  std::size_t blocks_max_;
  std::uint64_t now_ = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> used_;  // block -> when
  std::map<std::uint64_t, std::uint64_t> by_use_;
};

}  // namespace penstock::emulate
