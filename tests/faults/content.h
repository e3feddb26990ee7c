// What an engine of the fault suite keeps: layouts, prompts, and bytes that follow from a key.
//
// Every slice of every block is a pure function of (key, layer), so whoever reads a block can tell
// at once whether a byte of it is wrong, without asking who wrote it. Keys fold in the scope, so a
// block of another scope is wrong bytes too.
//
// Concurrency: values.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/rng.h"
#include "port/block_tier.h"

namespace penstock::faults {

inline constexpr std::uint32_t kBlockTokens = 16;
inline constexpr std::uint32_t kLayers = 4;
inline constexpr std::uint32_t kWindowBlocks = 2;
inline constexpr std::uint32_t kScopes = 3;

// Two engines: one keeps all of its history, layers 1 and 3 of the other slide.
enum class Kind : std::uint8_t { kPlain, kSliding };

inline const std::array<std::uint32_t, kLayers>& slice_bytes(Kind kind) {
  static constexpr std::array<std::uint32_t, kLayers> kPlainBytes = {4096, 8192, 1000, 4096};
  static constexpr std::array<std::uint32_t, kLayers> kSlidingBytes = {4096, 2048, 1000, 4096};
  return kind == Kind::kPlain ? kPlainBytes : kSlidingBytes;
}
inline bool slides(Kind kind, std::uint32_t layer) {
  return kind == Kind::kSliding && layer % 2 == 1;
}
inline std::uint32_t block_bytes(Kind kind) {
  std::uint32_t total = 0;
  for (const std::uint32_t bytes : slice_bytes(kind))
    total += bytes;
  return total;
}

class SliceContent {
 public:
  SliceContent(const BlockKey& key, std::uint32_t layer) {
    std::memcpy(&state_, key.bytes.data(), sizeof state_);
    state_ += 0x9e3779b97f4a7c15ULL * (layer + 1);
  }
  std::uint64_t next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return state_ ^ (state_ >> 29);
  }

 private:
  std::uint64_t state_ = 0;
};

inline void fill_slice(const BlockKey& key, std::uint32_t layer, std::span<std::byte> out) {
  SliceContent content(key, layer);
  for (std::size_t at = 0; at < out.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = content.next();
    std::memcpy(out.data() + at, &word, std::min(sizeof word, out.size() - at));
  }
}

inline bool slice_is_right(const BlockKey& key, std::uint32_t layer,
                           std::span<const std::byte> bytes) {
  SliceContent content(key, layer);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = content.next();
    if (std::memcmp(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at)) != 0)
      return false;
  }
  return true;
}

// The payload of a stored block, slices one after the other, whichever engine's it is.
inline bool payload_is_right(const BlockInfo& info, std::span<const std::byte> payload) {
  const std::size_t slices = info.slices.size();
  const bool window = info.name.group == KvGroup::kWindow;
  if (slices != kLayers && (window || slices != kLayers / 2)) return false;
  for (std::size_t i = 0; i < slices; ++i) {
    const auto number = static_cast<std::uint32_t>(i);
    // A window's slices are layer 1 of the block before and of the block, then layer 3 of both;
    // before the first block there is none, and its own stands there.
    const bool before = window && number % kWindowBlocks == 0 && info.depth > 0;
    const std::uint32_t layer = window              ? number / kWindowBlocks * 2 + 1
                                : slices == kLayers ? number
                                                    : number * 2;
    const std::span<const std::byte> slice = payload.first(info.slices[i].bytes);
    if (!slice_is_right(before ? info.parent : info.name.key, layer, slice)) return false;
    payload = payload.subspan(slice.size());
  }
  return true;
}

// A prompt of the fault suite: families share their first blocks, branches differ after them.
struct Prompt {
  std::uint32_t scope = 0;
  std::uint32_t family = 0;
  std::uint32_t branch = 0;
  std::uint32_t blocks = 0;

  std::vector<std::uint32_t> tokens() const {
    std::vector<std::uint32_t> out;
    out.reserve(std::size_t{blocks} * kBlockTokens);
    const std::uint32_t shared = 2 + family % 4;
    for (std::uint32_t i = 0; i < blocks; ++i) {
      const std::uint32_t label = family * 1'000'003 + i * 101 + (i < shared ? 0 : branch * 7919);
      for (std::uint32_t t = 0; t < kBlockTokens; ++t)
        out.push_back(label + t);
    }
    return out;
  }
};

}  // namespace penstock::faults
