// Text of the kernels, part 3: loading KV blocks and online softmax. Included by kernel_text.h
// only.
#pragma once

#include "engine/kernels/kernel_products.h"

namespace penstock::engine {
namespace {

// Exchanges the off-diagonal S x S blocks of the pair: one butterfly of a 16 x 16 transposition.
template <int...>
struct Indices {};
using AllLanes = Indices<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>;

template <int S, int... L>
PENSTOCK_INLINE void exchange(Lanes& a, Lanes& b, Indices<L...>) {
  const Lanes x = __builtin_shufflevector(a, b, ((L & S) == 0 ? L : 16 + L - S)...);
  const Lanes y = __builtin_shufflevector(a, b, ((L & S) == 0 ? L + S : 16 + L)...);
  a = x;
  b = y;
}

template <int S>
PENSTOCK_INLINE void exchange_all(Lanes* rows) {
#pragma clang loop unroll(full)
  for (int i = 0; i < 16; ++i) {
    if ((i & S) == 0) exchange<S>(rows[i], rows[i + S], AllLanes{});
  }
}
PENSTOCK_INLINE void transpose(Lanes* rows) {
  exchange_all<8>(rows);
  exchange_all<4>(rows);
  exchange_all<2>(rows);
  exchange_all<1>(rows);
}

// Loads 16 rows, of which the first `valid` exist, from `row` on; the rest is zero.
template <typename W, typename F>
PENSTOCK_INLINE void for_rows(const W* row, std::size_t width, unsigned valid, F f) {
  const W zeros[2 * kLanes] = {};
  if (valid == kLanes) {
#pragma clang loop unroll(full)
    for (unsigned i = 0; i < kLanes; ++i)
      f(i, row + i * width);
  } else {
#pragma clang loop unroll(full)
    for (unsigned i = 0; i < kLanes; ++i)
      f(i, i < valid ? row + i * width : zeros);
  }
}

// Where a group of 16 tokens starts in source and destinations.
template <typename W>
struct Group {
  const W* rows;      // the first token's row
  unsigned valid;     // tokens that exist, 1..16
  float* transposed;  // [width][64], at the first token's column
  float* latents;     // [16][latent_stride]
};

// 16 tokens x 16 columns. The slack up to the latent stride may take key columns; nothing reads
// what it computes.
template <typename W>
PENSTOCK_INLINE void load_square(const LoadBlockArgs& b, const Group<W>& g, unsigned column) {
  const bool latent = column + kLanes <= b.latent_stride;
  Lanes rows[kLanes];
  for_rows(g.rows + column, b.width, g.valid,
           [&](unsigned i, const W* row) __attribute__((always_inline)) {
             rows[i] = load(row);
             if (latent) store(g.latents + i * b.latent_stride + column, rows[i]);
           });
  transpose(rows);
#pragma clang loop unroll(full)
  for (unsigned i = 0; i < kLanes; ++i) {
    store(g.transposed + std::size_t{column + i} * kAttentionBlock, rows[i]);
  }
}

// 16 tokens x 32 columns of bfloat16: pairs are transposed as one word and widened afterwards,
// which takes half the shuffles.
PENSTOCK_INLINE void load_pairs(const LoadBlockArgs& b, const Group<unsigned short>& g,
                                unsigned column) {
  // The latent stride is a multiple of 32, as is the column: both halves belong to it, or neither.
  const bool latent = column < b.latent_stride;
  Lanes rows[kLanes];
  for_rows(g.rows + column, b.width, g.valid,
           [&](unsigned i, const unsigned short* row) __attribute__((always_inline)) {
             __builtin_memcpy(&rows[i], row, sizeof(Lanes));
             if (!latent) return;
             store(g.latents + i * b.latent_stride + column, load(row));
             store(g.latents + i * b.latent_stride + column + kLanes, load(row + kLanes));
           });
  transpose(rows);
#pragma clang loop unroll(full)
  for (unsigned i = 0; i < kLanes; ++i) {
    const Words pair = __builtin_bit_cast(Words, rows[i]);
    float* out = g.transposed + std::size_t{column + 2 * i} * kAttentionBlock;
    store(out, __builtin_bit_cast(Lanes, pair << 16));
    store(out + kAttentionBlock, __builtin_bit_cast(Lanes, pair & 0xFFFF0000U));
  }
}

template <typename W>
void load_group(const LoadBlockArgs& b, const Group<W>& g) {
  unsigned column = 0;
  if constexpr (sizeof(W) == 2) {
    for (; column + 2 * kLanes <= b.width; column += 2 * kLanes)
      load_pairs(b, g, column);
  }
  for (; column + kLanes <= b.width; column += kLanes)
    load_square(b, g, column);
  for (; column < b.width; ++column) {
    for (unsigned i = 0; i < kLanes; ++i) {
      const float x = i < g.valid ? widen(g.rows[std::size_t{i} * b.width + column]) : 0.0F;
      g.transposed[std::size_t{column} * kAttentionBlock + i] = x;
      if (column < b.latent_stride) g.latents[i * b.latent_stride + column] = x;
    }
  }
}

template <typename W>
void load_block_typed(const LoadBlockArgs& b) {
  const W* slice = static_cast<const W*>(static_cast<const void*>(b.slice));
  for (unsigned first = 0; first < kAttentionBlock; first += kLanes) {
    const unsigned valid = b.tokens <= first ? 0 : b.tokens - first;
    const Group<W> group = {slice + std::size_t{first} * b.width, valid < kLanes ? valid : kLanes,
                            b.transposed + first, b.latents + first * b.latent_stride};
    if (valid > 0) {
      load_group(b, group);
      continue;
    }
    for (unsigned i = 0; i < b.width; ++i) {
      store(group.transposed + std::size_t{i} * kAttentionBlock, Lanes(0.0F));
    }
    for (std::size_t i = 0; i < kLanes * b.latent_stride; i += kLanes) {
      store(group.latents + i, Lanes(0.0F));
    }
  }
}

void load_block(const LoadBlockArgs& args) {
  if (args.type == WeightType::kBf16) {
    load_block_typed<unsigned short>(args);
  } else {
    load_block_typed<float>(args);
  }
}

// Turns a row of dot products into probabilities and folds them into the row's maximum and sum.
// Returns the factor for what the row has gathered so far.
PENSTOCK_INLINE float soften(const AttendArgs& a, unsigned row) {
  constexpr unsigned kParts = kAttentionBlock / kLanes;
  const Words lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  float* scores = a.scores + row * kAttentionBlock;
  Lanes s[kParts];
  Lanes best = -kInfinity;
  for (unsigned i = 0; i < kParts; ++i) {
    const Words key = lane + i * kLanes;
    const auto seen = (key >= a.first[row]) & (key < a.last[row]);
    s[i] = seen ? load(scores + i * kLanes) * a.scale : Lanes(-kInfinity);
    best = larger(s[i], best);
  }
  const float block_max = fold_max(best);
  const float maximum = block_max > a.maximum[row] ? block_max : a.maximum[row];
  Lanes sums = 0.0F;
  for (unsigned i = 0; i < kParts; ++i) {
    s[i] = exponential(s[i] - maximum);
    store(scores + i * kLanes, s[i]);
    sums = sums + s[i];
  }
  const float factor = exponential(Lanes(a.maximum[row] - maximum))[0];
  a.maximum[row] = maximum;
  a.sum[row] = a.sum[row] * factor + fold_sum(sums);
  return factor;
}

void attend_block(const AttendArgs& a) {
  for (unsigned half = 0; half < kAttentionBlock; half += kPanelWidth) {
    strip(a.q, a.q_stride, a.transposed + half, kAttentionBlock, a.scores + half, kAttentionBlock,
          a.rows, a.width, false);
  }
  for (unsigned row = 0; row < a.rows; ++row) {
    if (a.first[row] >= a.last[row]) continue;
    const float factor = soften(a, row);
    if (factor == 1.0F) continue;
    float* out = a.output + row * a.latent_stride;
    for (std::size_t i = 0; i < a.latent_stride; i += kLanes)
      store(out + i, load(out + i) * factor);
  }
  // Runs of rows that see the same keys go through the tiles together. Keys outside the range are
  // left out of the chain, not multiplied by zero: they may be infinite or another token's.
  for (unsigned row = 0, next = 0; row < a.rows; row = next) {
    for (next = row + 1; next < a.rows; ++next) {
      if (a.first[next] != a.first[row] || a.last[next] != a.last[row]) break;
    }
    const unsigned first = a.first[row];
    if (first >= a.last[row]) continue;
    for (std::size_t i = 0; i < a.latent_stride; i += kPanelWidth) {
      strip(a.scores + row * kAttentionBlock + first, kAttentionBlock,
            a.latents + first * a.latent_stride + i, a.latent_stride,
            a.output + row * a.latent_stride + i, a.latent_stride, next - row, a.last[row] - first,
            true);
    }
  }
}

}  // namespace
}  // namespace penstock::engine
