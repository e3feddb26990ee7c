// Where KV comes into the engine and goes out of it: prefixes from a cache or another worker,
// finished blocks for a cache or another worker.
//
// PrefixLoad: the engine takes free blocks for a prefix, starts the load, and goes on with other
// work until layer 0 is there; then it computes the rest of the prompt, waiting before each layer
// for that layer only. Bytes that turn out wrong shorten the prefix: what was computed on them is
// thrown away and computed again. BlockSink: is shown each block once, when all its tokens are
// computed, and may keep it from being reused while it is copied away (KvPool::retain).
// RemotePrefix: the KV of a decode leg, which another worker still computes; the sequence holds
// blocks and waits for it, however long, while the engine goes on with others. LegSink: is shown
// the blocks of a prefill leg as they fill.
//
// Invariants: after stop() nothing writes into the blocks, unless whoever writes still holds them
// (KvPool::retain); the blocks of a load are written by the load only, until it has ended. Errors:
// none; a prefix that can't be loaded is a shorter prefix. Concurrency: the engine's thread calls
// everything; wait_layer() may block for the time of a copy in memory, never for a disk, a socket
// or another process. Source: docs/design/0005-kv-cache.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "domain/engine.h"
#include "engine/kv_pool.h"

namespace penstock::engine {

class PrefixLoad {
 public:
  virtual ~PrefixLoad() = default;
  // Whole blocks from position 0 on; constant.
  virtual std::uint32_t blocks() const = 0;
  // Starts copying into `to` [blocks()]; called at most once.
  virtual void start(std::span<const BlockId> to) = 0;
  // True when wait_layer(layer) would not block.
  virtual bool ready(std::uint32_t layer) = 0;
  // Waits until the layer's slices are in place; returns after how many leading blocks the sequence
  // may go on: those that are right in all layers so far and, with sliding windows, whose end has
  // its windows. Layers come in order; asking for the last one again is allowed.
  virtual std::uint32_t wait_layer(std::uint32_t layer) = 0;
  // Ends the load, finished or not.
  virtual void stop() = 0;
};

// The whole blocks of one choice, as of now.
struct ComputedBlocks {
  const EngineRequest* request = nullptr;
  std::uint32_t choice = 0;
  std::span<const TokenId> tokens;  // whose KV is computed: prompt, emitted, generated
  std::span<const BlockId> blocks;  // block i covers positions [64 i, 64 i + 64); whole ones only
  std::uint32_t first_new = 0;      // blocks before it were shown earlier, or came from the cache
  bool prompt_end = false;          // the last whole block of the prompt is the last of `blocks`
  bool answer_end = false;          // the choice ends, and its blocks are given back after this
};

class BlockSink {
 public:
  virtual ~BlockSink() = default;
  // False: it could not take them now; they are shown again with the next ones, or at the end.
  virtual bool computed(const ComputedBlocks& blocks) = 0;
};

class RemotePrefix {
 public:
  struct Arrival {
    std::uint32_t tokens = 0;      // leading tokens whose KV is in place; 0: it did not work out
    std::optional<TokenId> drawn;  // by the prefill leg, after those tokens
    std::shared_ptr<PrefixLoad> instead;  // with 0 tokens: what a cache has; may be null
  };

  virtual ~RemotePrefix() = default;
  // Fills `to`, which covers all tokens of the request; called at most once.
  virtual void start(std::span<const BlockId> to) = 0;
  // True when nothing more will come.
  virtual bool arrived() = 0;
  virtual Arrival arrival() = 0;  // once, after arrived()
  // The request has ended, or its blocks are wanted for others.
  virtual void stop() = 0;
};

class LegSink {
 public:
  virtual ~LegSink() = default;
  // KV of the first `tokens` tokens of a prefill leg is computed and in `blocks`, the last of which
  // may be partly filled: it is final when `tokens` is all there is.
  virtual void grown(const EngineRequest& request, std::span<const BlockId> blocks,
                     std::uint32_t tokens) = 0;
  // Its blocks are wanted for others: the leg is computed again later, in other blocks.
  virtual void thrown_out(const EngineRequest& request) { static_cast<void>(request); }
};

}  // namespace penstock::engine
