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

template <typename W>
PENSTOCK_INLINE const W* block_row(const LoadBlockArgs& b, unsigned token, const W* zeros) {
  const W* slice = static_cast<const W*>(static_cast<const void*>(b.slice));
  return token < b.tokens ? slice + std::size_t{token} * b.width : zeros;
}
// The slack up to the stride may take key columns here; nothing reads what it computes.
PENSTOCK_INLINE void store_latents(const LoadBlockArgs& b, unsigned token, unsigned column,
                                   Lanes v) {
  if (column + kLanes <= b.latent_stride) {
    store(b.latents + token * b.latent_stride + column, v);
  }
}

// 16 tokens x 16 columns.
template <typename W>
PENSTOCK_INLINE void load_square(const LoadBlockArgs& b, unsigned first, unsigned column) {
  const W zeros[kLanes] = {};
  Lanes rows[kLanes];
#pragma clang loop unroll(full)
  for (unsigned i = 0; i < kLanes; ++i) {
    const bool valid = first + i < b.tokens;
    rows[i] = load(block_row(b, first + i, zeros) + (valid ? column : 0));
    store_latents(b, first + i, column, rows[i]);
  }
  transpose(rows);
#pragma clang loop unroll(full)
  for (unsigned i = 0; i < kLanes; ++i) {
    store(b.transposed + std::size_t{column + i} * kAttentionBlock + first, rows[i]);
  }
}

// 16 tokens x 32 columns of bfloat16: pairs are transposed as one word and widened afterwards,
// which takes half the shuffles.
PENSTOCK_INLINE void load_pairs(const LoadBlockArgs& b, unsigned first, unsigned column) {
  const unsigned short zeros[2 * kLanes] = {};
  Lanes rows[kLanes];
#pragma clang loop unroll(full)
  for (unsigned i = 0; i < kLanes; ++i) {
    const bool valid = first + i < b.tokens;
    const unsigned short* row = block_row(b, first + i, zeros) + (valid ? column : 0);
    __builtin_memcpy(&rows[i], row, sizeof(Lanes));
    store_latents(b, first + i, column, load(row));
    store_latents(b, first + i, column + kLanes, load(row + kLanes));
  }
  transpose(rows);
#pragma clang loop unroll(full)
  for (unsigned i = 0; i < kLanes; ++i) {
    const Words pair = __builtin_bit_cast(Words, rows[i]);
    float* out = b.transposed + std::size_t{column + 2 * i} * kAttentionBlock + first;
    store(out, __builtin_bit_cast(Lanes, pair << 16));
    store(out + kAttentionBlock, __builtin_bit_cast(Lanes, pair & 0xFFFF0000U));
  }
}

template <typename W>
void load_block_typed(const LoadBlockArgs& b) {
  for (unsigned first = 0; first < kAttentionBlock; first += kLanes) {
    unsigned column = 0;
    if constexpr (sizeof(W) == 2) {
      for (; column + 2 * kLanes <= b.width; column += 2 * kLanes)
        load_pairs(b, first, column);
    }
    for (; column + kLanes <= b.width; column += kLanes)
      load_square<W>(b, first, column);
    for (; column < b.width; ++column) {
      for (unsigned t = first; t < first + kLanes; ++t) {
        const float x = t < b.tokens ? widen(block_row<W>(b, t, nullptr)[column]) : 0.0F;
        b.transposed[std::size_t{column} * kAttentionBlock + t] = x;
        if (column < b.latent_stride) b.latents[t * b.latent_stride + column] = x;
      }
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
