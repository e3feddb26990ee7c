// The paged KV pool: blocks of 64 tokens in shared memory, reference-counted, with generations.
//
// One memfd holds everything, so that a KV daemon can map it read-only and copy blocks out. MLA
// caches one row per token and layer: the normalised latent and the rotated key part that all heads
// share.
//
// Units and shapes, of the memfd (all little-endian, offsets in bytes):
//   0                 generation words: uint64[blocks], bumped before a block's first overwrite
//   payload_offset    block payloads: [blocks][block_bytes]
//   a payload         [layers] slices of slice_bytes, one after the other
//   a slice           [64 tokens][row_width] elements of `dtype`, row_width = kv_lora_rank + rope;
//                     the first kv_lora_rank elements of a row are the latent, the rest the key
//                     part
// Invariants: a block with references is never handed out again; a free block's generation is not
// the one it had in use, once it is reused; rows beyond a sequence's computed tokens mean nothing.
// Errors: open() fails with kIo or kInvalidArgument; allocate() gives nullopt when the pool is
// full. Concurrency: one thread (the engine's) allocates and writes; other processes only read the
// memfd and check the generation word before and after (design.md section 4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace penstock::engine {

inline constexpr std::uint32_t kBlockTokens = 64;

enum class KvDtype : std::uint8_t { kBf16, kF32 };

struct BlockId {
  std::uint32_t value = 0;
  auto operator<=>(const BlockId&) const = default;
};

struct KvLayout {
  std::uint32_t layers = 0;
  std::uint32_t latent_width = 0;  // kv_lora_rank
  std::uint32_t rope_width = 0;    // qk_rope_head_dim
  KvDtype dtype = KvDtype::kBf16;

  std::size_t row_width() const { return std::size_t{latent_width} + rope_width; }
  std::size_t element_bytes() const { return dtype == KvDtype::kBf16 ? 2 : 4; }
  std::size_t slice_bytes() const { return kBlockTokens * row_width() * element_bytes(); }
  std::size_t block_bytes() const { return layers * slice_bytes(); }
};

class KvPool {
 public:
  // Creates the memfd for `blocks` blocks and maps it.
  static Result<std::unique_ptr<KvPool>> open(const KvLayout& layout, std::uint32_t blocks);
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  // Takes a free block with one reference and bumps its generation; nullopt when none is free.
  std::optional<BlockId> allocate();
  void retain(BlockId block);
  // Drops one reference; the last one frees the block.
  void release(BlockId block);
  std::uint32_t references(BlockId block) const;
  std::uint64_t generation(BlockId block) const;

  // Copies the whole payload of one block over another.
  void copy(BlockId from, BlockId to);
  // The payload [layers][64][row_width], and one layer's slice of it.
  std::span<std::byte> payload(BlockId block);
  std::byte* slice(BlockId block, std::uint32_t layer) {
    return payloads_ + block.value * layout_.block_bytes() + layer * layout_.slice_bytes();
  }

  const KvLayout& layout() const { return layout_; }
  std::uint32_t blocks() const { return static_cast<std::uint32_t>(references_.size()); }
  std::uint32_t free_blocks() const { return static_cast<std::uint32_t>(free_.size()); }
  // The memfd, for passing to another process; it stays ours.
  int fd() const { return fd_; }
  std::size_t payload_offset() const { return payload_offset_; }
  std::size_t mapped_bytes() const { return mapped_bytes_; }

 private:
  KvPool() = default;

  KvLayout layout_;
  int fd_ = -1;
  std::byte* base_ = nullptr;
  std::byte* payloads_ = nullptr;
  std::size_t payload_offset_ = 0;
  std::size_t mapped_bytes_ = 0;
  std::vector<std::uint32_t> references_;
  std::vector<BlockId> free_;  // taken from the back
};

}  // namespace penstock::engine
