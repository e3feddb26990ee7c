// ToyMemory: a rank's KV pool for ToyEngine: small blocks with references and generations.
//
// A block that nobody holds any more is written over at once, under a new generation: whoever still
// reads it finds other bytes. The bytes outlive the process (readers may have them mapped), so they
// are shared.
// Units and shapes: generation words uint64[blocks], then payloads [blocks][2 layers][4 tokens][8
// bytes]. Concurrency: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "service/handoff/handoff_service.h"

namespace penstock::simulated {

inline constexpr std::uint32_t kToyLayers = 2;
inline constexpr std::uint32_t kToyBlockTokens = 4;
inline constexpr std::uint32_t kToyRowBytes = 8;
inline constexpr std::uint32_t kToySliceBytes = kToyBlockTokens * kToyRowBytes;
inline constexpr std::uint32_t kToyBlockBytes = kToyLayers * kToySliceBytes;

constexpr std::uint32_t toy_blocks(std::uint64_t tokens) {
  return static_cast<std::uint32_t>((tokens + kToyBlockTokens - 1) / kToyBlockTokens);
}

class ToyMemory {
 public:
  explicit ToyMemory(std::uint32_t blocks)
      : bytes_(
            std::make_shared<std::vector<std::byte>>(std::size_t{blocks} * (8 + kToyBlockBytes))),
        references_(blocks) {
    for (std::uint32_t block = blocks; block-- > 0;)
      free_.push_back(block);
  }

  std::uint32_t blocks() const { return static_cast<std::uint32_t>(references_.size()); }
  std::uint32_t free_blocks() const { return static_cast<std::uint32_t>(free_.size()); }
  std::shared_ptr<std::vector<std::byte>> bytes() const { return bytes_; }

  // `n` blocks with one reference each. Precondition: so many are free.
  std::vector<std::uint32_t> allocate(std::uint32_t n) {
    std::vector<std::uint32_t> out;
    while (out.size() < n) {
      ENSURE(!free_.empty());
      out.push_back(free_.back());
      free_.pop_back();
      bump(out.back());
      references_[out.back()] = 1;
    }
    return out;
  }
  void retain(std::uint32_t block) {
    ENSURE(references_[block] > 0);
    ++references_[block];
  }
  void release(std::uint32_t block) {
    ENSURE(references_[block] > 0);
    if (--references_[block] > 0) return;
    bump(block);
    std::memset(payload(block), static_cast<int>(0xD0 + generation(block) % 16), kToyBlockBytes);
    free_.push_back(block);
  }
  std::uint64_t generation(std::uint32_t block) const {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes_->data() + block * 8UL, 8);
    return word;
  }
  std::byte* payload(std::uint32_t block) {
    return bytes_->data() + blocks() * 8UL + std::size_t{block} * kToyBlockBytes;
  }
  std::uint64_t row(std::uint32_t block, std::uint32_t layer, std::uint32_t slot) {
    std::uint64_t value = 0;
    std::memcpy(&value, at(block, layer, slot), 8);
    return value;
  }
  void set_row(std::uint32_t block, std::uint32_t layer, std::uint32_t slot, std::uint64_t value) {
    std::memcpy(at(block, layer, slot), &value, 8);
  }
  void copy(std::uint32_t from, std::uint32_t to) {
    std::memcpy(payload(to), payload(from), kToyBlockBytes);
  }

  service::RankMemory rank_memory(std::string model) {
    service::RankMemory memory;
    memory.pool = {-1, bytes_->data(), bytes_->size(), blocks() * 8UL, kToyBlockBytes, blocks()};
    memory.payloads = payload(0);
    memory.model = std::move(model);
    memory.layers = kToyLayers;
    memory.block_tokens = kToyBlockTokens;
    memory.slice_bytes = kToySliceBytes;
    memory.kv_format = "toy";
    return memory;
  }

 private:
  std::byte* at(std::uint32_t block, std::uint32_t layer, std::uint32_t slot) {
    return payload(block) + layer * std::size_t{kToySliceBytes} + slot * std::size_t{kToyRowBytes};
  }
  void bump(std::uint32_t block) {
    const std::uint64_t word = generation(block) + 1;
    std::memcpy(bytes_->data() + block * 8UL, &word, 8);
  }

  std::shared_ptr<std::vector<std::byte>> bytes_;
  std::vector<std::uint32_t> references_;
  std::vector<std::uint32_t> free_;
};

}  // namespace penstock::simulated
