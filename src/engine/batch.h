// One forward pass's input: rows of tokens, grouped in chunks of one sequence each.
//
// Invariants: chunks cover rows [0, tokens.size()) in order; a chunk's blocks cover positions
// [0, position + rows) and everything before `position` is computed, or being loaded; only blocks
// that no other sequence references are written. Concurrency: values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "domain/tokens.h"
#include "engine/kv_hooks.h"

namespace penstock::engine {

struct Chunk {
  std::uint32_t row = 0;       // first row of the batch
  std::uint32_t rows = 0;      // consecutive positions
  std::uint32_t position = 0;  // of the first row
  std::span<const BlockId> blocks;
  PrefixLoad* load = nullptr;  // still copies the blocks before `position`; null: all are there
};

struct Batch {
  std::vector<TokenId> tokens;  // [rows]
  std::vector<Chunk> chunks;
  std::vector<std::uint32_t> logit_rows;  // rows whose logits are wanted, ascending

  std::uint32_t rows() const { return static_cast<std::uint32_t>(tokens.size()); }
  void clear() {
    tokens.clear();
    chunks.clear();
    logit_rows.clear();
  }
};

}  // namespace penstock::engine
