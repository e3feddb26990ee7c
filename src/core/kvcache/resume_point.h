// Where a hit resumes: the number of leading blocks whose KV is used, at an exact point.
//
// History KV is needed of the whole prefix. Engines with sliding-window layers also need the
// window state at the very point where they go on, which exists at some depths only (prompt end,
// answer end, every 2,048 tokens): they resume at the largest depth that has it.
//
// Units and shapes: blocks, counted from the start of the chain. A window at depth d belongs to
// the end of block d, so resuming there uses d + 1 blocks.
// Concurrency: pure. Source: design.md section 6.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace penstock::kvcache {

enum class WindowLayers : std::uint8_t { kNone, kSome };

// `history_blocks` lead without a gap; `windows` are depths in ascending order; `blocks_max` limits
// the result (a prompt needs at least one token left to compute, see blocks_before_last_token).
inline std::uint32_t resume_point(std::uint32_t history_blocks,
                                  std::span<const std::uint32_t> windows, WindowLayers layers,
                                  std::uint32_t blocks_max) {
  const std::uint32_t limit = std::min(history_blocks, blocks_max);
  if (layers == WindowLayers::kNone) return limit;
  // The largest d with d + 1 <= limit.
  const auto after = std::ranges::lower_bound(windows, limit);
  return after == windows.begin() ? 0 : *(after - 1) + 1;
}

// The most blocks a prompt can resume after: its last token is always computed.
inline std::uint32_t blocks_before_last_token(std::uint64_t prompt_tokens,
                                              std::uint32_t block_tokens) {
  return prompt_tokens == 0 ? 0 : static_cast<std::uint32_t>((prompt_tokens - 1) / block_tokens);
}

}  // namespace penstock::kvcache
