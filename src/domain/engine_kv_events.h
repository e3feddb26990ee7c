// What an engine's publisher says of its KV cache, as values: one message, decoded.
//
// core/dialects/kv_events makes them from the engines' wire; core/kvcache/engine_holdings turns
// them into our own keys. Everything lies in flat vectors that are reused from message to message;
// events hold ranges of them.
//
// Engines name blocks by hashes of their own, which nobody else can compute (block size, algorithm
// and seed are theirs). Here they only link a block to its parent and to its removal.
//
// Units and shapes: tokens; hashes are the low 64 bits of what the engine sent. Concurrency:
// values. Source: facts of vLLM's and SGLang's KV events in docs/kv-events.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "domain/kv.h"
#include "domain/tokens.h"

namespace penstock {

struct EngineKvEvent {
  enum class Kind : std::uint8_t { kStored, kRemoved, kCleared };
  // Whose state it is: of layers that need the whole prefix, or of others.
  enum class Attention : std::uint8_t { kUnknown, kFull, kOther };
  struct Range {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
  };

  Kind kind = Kind::kStored;
  KvTier tier = KvTier::kDevice;
  Attention attention = Attention::kUnknown;
  std::optional<std::uint32_t> group = {};  // cache group of a hybrid model
  Range hashes = {};                        // of the blocks, in the order of the prefix
  // Of kStored:
  std::optional<std::uint64_t> parent = {};  // none: the first block begins a prompt
  Range tokens = {};  // of all its blocks; empty: the hashes are known already
  std::uint32_t block_tokens = 0;
  std::uint64_t context = 0;  // kv_context()
  Range media = {};
};

// Something that the tokens don't tell: an image begins at `token` of the event's tokens.
struct EngineKvMedia {
  std::uint32_t token = 0;
  std::uint64_t digest = 0;  // kv_media()
};

struct EngineKvBatch {
  double timestamp = 0;
  std::optional<std::uint32_t> rank;
  std::vector<EngineKvEvent> events;
  std::vector<std::uint64_t> hashes;
  std::vector<TokenId> tokens;
  std::vector<EngineKvMedia> media;
  // What was not understood, and left out.
  std::uint32_t unknown_events = 0;
  std::uint32_t unknown_fields = 0;
  std::uint32_t bad_events = 0;

  void clear() {
    timestamp = 0;
    rank.reset();
    events.clear();
    hashes.clear();
    tokens.clear();
    media.clear();
    unknown_events = unknown_fields = bad_events = 0;
  }
};

// What a prompt's KV depends on besides its tokens: adapter and cache salt, each tagged and framed,
// so that an adapter named like a salt is another context. 0 without both.
std::uint64_t kv_context(std::string_view lora, std::string_view salt);
// An image (or the like) by the hash that the engine calls it.
std::uint64_t kv_media(std::string_view hash);

}  // namespace penstock
