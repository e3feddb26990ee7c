// MemoryCache: a KV cache for tests: keeps the blocks that an engine shows, loads them into
// another.
//
// Blocks are named by the tokens up to their end. A load copies layer by layer at the latest moment
// allowed, and can be told to be late, or to bring wrong bytes from some (layer, block) on and say
// so. Of sliding-window layers it brings only the blocks that the window needs, garbage elsewhere.
// Concurrency: one thread.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "engine/config.h"
#include "engine/kv_hooks.h"

namespace penstock::engine {

class MemoryCache final : public BlockSink {
 public:
  struct LoadPlan {
    std::uint32_t blocks = 0;
    std::uint32_t polls_late = 0;  // how often ready() is false
    std::uint32_t wrong_layer = ~0U;
    std::uint32_t wrong_block = ~0U;
  };

  MemoryCache(KvPool& pool, const ModelConfig& config) : pool_(pool), config_(config) {}

  // Takes nothing the next so many times.
  void refuse(int times) { refuse_ = times; }

  bool computed(const ComputedBlocks& c) override {
    if (refuse_ > 0) {
      --refuse_;
      return false;
    }
    for (std::uint32_t b = c.first_new; b < c.blocks.size(); ++b) {
      const auto bytes = pool_.payload(c.blocks[b]);
      auto& kept = blocks_[name(c.tokens, b)];
      if (kept.empty()) kept.assign(bytes.begin(), bytes.end());
      ++shown_;
    }
    return true;
  }
  std::size_t shown() const { return shown_; }

  // How many leading blocks of `tokens` are held.
  std::uint32_t held(std::span<const TokenId> tokens) const {
    std::uint32_t n = 0;
    while ((n + 1) * kBlockTokens <= tokens.size() && blocks_.contains(name(tokens, n)))
      ++n;
    return n;
  }

  // Loads into the engine whose pool is `pool`.
  std::shared_ptr<PrefixLoad> load(KvPool& pool, std::span<const TokenId> tokens,
                                   LoadPlan plan) const {
    std::vector<const std::vector<std::byte>*> sources;
    for (std::uint32_t b = 0; b < plan.blocks; ++b)
      sources.push_back(&blocks_.at(name(tokens, b)));
    return std::make_shared<Load>(pool, config_, std::move(sources), plan);
  }

 private:
  class Load final : public PrefixLoad {
   public:
    Load(KvPool& pool, const ModelConfig& config,
         std::vector<const std::vector<std::byte>*> sources, LoadPlan plan)
        : pool_(pool), config_(config), sources_(std::move(sources)), plan_(plan) {}

    std::uint32_t blocks() const override { return plan_.blocks; }
    void start(std::span<const BlockId> to) override {
      to_.assign(to.begin(), to.begin() + plan_.blocks);
      for (const BlockId b : to_)
        std::ranges::fill(pool_.payload(b), std::byte{0x7F});  // NaN in every dtype
    }
    bool ready(std::uint32_t) override { return plan_.polls_late == 0 || --plan_.polls_late == 0; }
    std::uint32_t wait_layer(std::uint32_t layer) override {
      const std::size_t bytes = pool_.layout().slice_bytes();
      const std::uint32_t window = config_.window[layer];
      const std::uint32_t needed =
          window == 0 ? plan_.blocks : (window + kBlockTokens - 1) / kBlockTokens;
      for (std::uint32_t b = plan_.blocks - std::min(needed, plan_.blocks); b < plan_.blocks; ++b) {
        if (layer == plan_.wrong_layer && b >= plan_.wrong_block) {
          right_ = std::min(right_, plan_.wrong_block);
          continue;
        }
        std::copy_n(sources_[b]->data() + layer * bytes, bytes, pool_.slice(to_[b], layer));
      }
      return std::min(right_, plan_.blocks);
    }
    void stop() override {}

   private:
    KvPool& pool_;
    const ModelConfig& config_;
    std::vector<const std::vector<std::byte>*> sources_;
    LoadPlan plan_;
    std::vector<BlockId> to_;
    std::uint32_t right_ = ~0U;
  };

  static std::vector<TokenId> name(std::span<const TokenId> tokens, std::uint32_t block) {
    const auto head = tokens.first((block + 1) * kBlockTokens);
    return {head.begin(), head.end()};
  }

  KvPool& pool_;
  const ModelConfig& config_;
  std::map<std::vector<TokenId>, std::vector<std::byte>> blocks_;
  std::size_t shown_ = 0;
  int refuse_ = 0;
};

}  // namespace penstock::engine
