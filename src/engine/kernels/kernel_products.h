// Text of the kernels, part 2: matrix products. Included by kernel_text.h only.
//
// Register tiles of rows x 32 outputs; every output is one chain of fused multiply-adds over k.
#pragma once

#include "engine/kernels/kernel_lanes.h"

namespace penstock::engine {
namespace {

// Rows of a register tile: as many accumulators (two Lanes each) as the registers hold.
constexpr unsigned kTileRows = PENSTOCK_TILE_ROWS;
// Depth of one pass over a panel: 32 KiB of float32, which stay in the L1 cache.
constexpr unsigned kDepth = 256;

// c[Rows, 32] = (add ? c : 0) + a[Rows, k] * b[k, 32]: 2 * Rows chains side by side in registers.
template <unsigned Rows, typename W>
PENSTOCK_INLINE void tile(const float* a, std::size_t lda, const W* b, std::size_t ldb, float* c,
                          std::size_t ldc, unsigned k, bool add) {
  Lanes sums[Rows][2];
#pragma clang loop unroll(full)
  for (unsigned r = 0; r < Rows; ++r) {
    sums[r][0] = add ? load(c + r * ldc) : Lanes(0.0F);
    sums[r][1] = add ? load(c + r * ldc + kLanes) : Lanes(0.0F);
  }
  for (unsigned i = 0; i < k; ++i) {
    const Lanes b0 = load(b);
    const Lanes b1 = load(b + kLanes);
    b += ldb;
#pragma clang loop unroll(full)
    for (unsigned r = 0; r < Rows; ++r) {
      const Lanes x = a[r * lda + i];
      sums[r][0] = fused(x, b0, sums[r][0]);
      sums[r][1] = fused(x, b1, sums[r][1]);
    }
  }
#pragma clang loop unroll(full)
  for (unsigned r = 0; r < Rows; ++r) {
    store(c + r * ldc, sums[r][0]);
    store(c + r * ldc + kLanes, sums[r][1]);
  }
}

template <unsigned Rows, typename W>
PENSTOCK_INLINE void tile_from(unsigned rows, const float* a, std::size_t lda, const W* b,
                               std::size_t ldb, float* c, std::size_t ldc, unsigned k, bool add) {
  if (rows == Rows) {
    tile<Rows>(a, lda, b, ldb, c, ldc, k, add);
  } else if constexpr (Rows > 1) {
    tile_from<Rows - 1>(rows, a, lda, b, ldb, c, ldc, k, add);
  }
}
// Calls the tile of exactly `rows` rows. Not inlined: the tiles are most of the code.
template <typename W>
__attribute__((noinline)) void tile_of(unsigned rows, const float* a, std::size_t lda, const W* b,
                                       std::size_t ldb, float* c, std::size_t ldc, unsigned k,
                                       bool add) {
  tile_from<kTileRows>(rows, a, lda, b, ldb, c, ldc, k, add);
}

// Splits the rows into equal tiles and runs them over [k, 32] of b.
template <typename W>
void strip(const float* a, std::size_t lda, const W* b, std::size_t ldb, float* c, std::size_t ldc,
           unsigned rows, unsigned k, bool add) {
  const unsigned tiles = (rows + kTileRows - 1) / kTileRows;
  unsigned row = 0;
  for (unsigned t = 0; t < tiles; ++t) {
    const unsigned n = (rows - row + (tiles - t) - 1) / (tiles - t);
    tile_of(n, a + row * lda, lda, b, ldb, c + row * ldc, ldc, k, add);
    row += n;
  }
}

// A panel of which only some columns are outputs: goes through a full-width copy of c.
template <typename W>
void narrow_panel(const MatmulArgs& m, const W* panel, float* c, unsigned columns) {
  float wide[kTileRows * kPanelWidth] = {};
  for (unsigned row = 0; row < m.rows; row += kTileRows) {
    const unsigned n = m.rows - row < kTileRows ? m.rows - row : kTileRows;
    for (unsigned r = 0; m.add && r < n; ++r) {
      for (unsigned i = 0; i < columns; ++i)
        wide[r * kPanelWidth + i] = c[(row + r) * m.ldc + i];
    }
    tile_of(n, m.a + row * m.lda, m.lda, panel, kPanelWidth, wide, kPanelWidth, m.k, m.add);
    for (unsigned r = 0; r < n; ++r) {
      for (unsigned i = 0; i < columns; ++i)
        c[(row + r) * m.ldc + i] = wide[r * kPanelWidth + i];
    }
  }
}

// A single row over several panels at once: one panel has only two chains, too few to hide the
// latency of the multiply-add.
constexpr unsigned kPanelsOfRow = kTileRows >= 8 ? 4 : 2;

template <typename W>
PENSTOCK_INLINE void single_row(const MatmulArgs& m, const W* panels, float* c) {
  const std::size_t stride = std::size_t{m.k} * kPanelWidth;
  Lanes sums[kPanelsOfRow][2];
#pragma clang loop unroll(full)
  for (unsigned p = 0; p < kPanelsOfRow; ++p) {
    sums[p][0] = m.add ? load(c + p * kPanelWidth) : Lanes(0.0F);
    sums[p][1] = m.add ? load(c + p * kPanelWidth + kLanes) : Lanes(0.0F);
  }
  for (unsigned i = 0; i < m.k; ++i) {
    const Lanes x = m.a[i];
#pragma clang loop unroll(full)
    for (unsigned p = 0; p < kPanelsOfRow; ++p) {
      const W* b = panels + p * stride + std::size_t{i} * kPanelWidth;
      sums[p][0] = fused(x, load(b), sums[p][0]);
      sums[p][1] = fused(x, load(b + kLanes), sums[p][1]);
    }
  }
#pragma clang loop unroll(full)
  for (unsigned p = 0; p < kPanelsOfRow; ++p) {
    store(c + p * kPanelWidth, sums[p][0]);
    store(c + p * kPanelWidth + kLanes, sums[p][1]);
  }
}

template <typename W>
void matmul_typed(const MatmulArgs& m) {
  const W* panel = static_cast<const W*>(m.panels);
  unsigned column = 0;
  for (; m.rows == 1 && column + kPanelsOfRow * kPanelWidth <= m.columns;
       column += kPanelsOfRow * kPanelWidth) {
    single_row(m, panel, m.c + column);
    panel += std::size_t{m.k} * kPanelWidth * kPanelsOfRow;
  }
  for (; column < m.columns; column += kPanelWidth) {
    const unsigned columns = m.columns - column;
    if (columns < kPanelWidth) {
      narrow_panel(m, panel, m.c + column, columns);
      return;
    }
    // Passes over k reload their accumulators from c, which is exact: the chain goes on.
    for (unsigned k = 0; k < m.k; k += kDepth) {
      const unsigned depth = m.k - k < kDepth ? m.k - k : kDepth;
      strip(m.a + k, m.lda, panel + std::size_t{k} * kPanelWidth, kPanelWidth, m.c + column, m.ldc,
            m.rows, depth, m.add || k > 0);
    }
    panel += std::size_t{m.k} * kPanelWidth;
  }
}

void matmul(const MatmulArgs& m) {
  if (m.type == WeightType::kBf16) {
    matmul_typed<unsigned short>(m);
  } else {
    matmul_typed<float>(m);
  }
}

}  // namespace
}  // namespace penstock::engine
