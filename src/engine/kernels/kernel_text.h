// The text of the kernels, included once by each kernels_<set>.cc, which is compiled with that
// set's flags and defines PENSTOCK_TILE_ROWS. Everything here has internal linkage and uses no
// library code, so nothing compiled for a newer CPU can leak into the rest of the program.
//
// A Lanes is 16 floats: one register with AVX-512, two with AVX2, four with SSE2, where the fused
// multiply-add becomes calls of the C library's fmaf. All operations used are exactly rounded (+ -
// * / sqrt fma, comparisons, integer), so the lanes' values do not depend on how they are carried
// out.

#include "engine/kernels/kernels.h"

namespace penstock::engine {
namespace {

#define PENSTOCK_INLINE inline __attribute__((always_inline))

using Lanes = float __attribute__((ext_vector_type(16)));
using Words = unsigned __attribute__((ext_vector_type(16)));
using Halves = unsigned short __attribute__((ext_vector_type(16)));

constexpr unsigned kLanes = 16;
constexpr float kInfinity = __builtin_inff();
// Rows of a register tile: as many accumulators (two Lanes each) as the registers hold.
constexpr unsigned kTileRows = PENSTOCK_TILE_ROWS;
// Depth of one pass over a panel: a float32 panel of this depth is 32 KiB and stays in the L1
// cache.
constexpr unsigned kDepth = 256;

PENSTOCK_INLINE Lanes load(const float* p) {
  Lanes v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
// A bfloat16 is the upper half of a float32.
PENSTOCK_INLINE Lanes load(const unsigned short* p) {
  Halves h;
  __builtin_memcpy(&h, p, sizeof(h));
  return __builtin_bit_cast(Lanes, __builtin_convertvector(h, Words) << 16);
}
PENSTOCK_INLINE float widen(float x) {
  return x;
}
PENSTOCK_INLINE float widen(unsigned short x) {
  return __builtin_bit_cast(float, static_cast<unsigned>(x) << 16);
}
PENSTOCK_INLINE void store(float* p, Lanes v) {
  __builtin_memcpy(p, &v, sizeof(v));
}
PENSTOCK_INLINE Lanes load_part(const float* p, std::size_t n, float fill) {
  Lanes v = fill;
  for (unsigned i = 0; i < n; ++i)
    v[i] = p[i];
  return v;
}
PENSTOCK_INLINE void store_part(float* p, std::size_t n, Lanes v) {
  for (unsigned i = 0; i < n; ++i)
    p[i] = v[i];
}
PENSTOCK_INLINE Lanes fused(Lanes a, Lanes b, Lanes c) {
  return __builtin_elementwise_fma(a, b, c);
}

// The fixed tree of a 16-lane sum: halves are folded onto each other.
PENSTOCK_INLINE float fold_sum(Lanes v) {
  float s[kLanes];
  store(s, v);
  for (unsigned half = kLanes / 2; half > 0; half /= 2) {
    for (unsigned i = 0; i < half; ++i)
      s[i] = s[i] + s[i + half];
  }
  return s[0];
}
PENSTOCK_INLINE Lanes larger(Lanes a, Lanes b) {
  return a > b ? a : b;
}
PENSTOCK_INLINE float fold_max(Lanes v) {
  float s[kLanes];
  store(s, v);
  for (unsigned half = kLanes / 2; half > 0; half /= 2) {
    for (unsigned i = 0; i < half; ++i)
      s[i] = s[i] > s[i + half] ? s[i] : s[i + half];
  }
  return s[0];
}

// exp to about one unit in the last place: 2^n * e^r with |r| <= ln(2)/2 and the Taylor polynomial
// of degree 7 (its remainder there is 5e-9). Below -87.3 the result is 0, above 88 it is exp(88):
// no infinities, no subnormal results. NaN stays NaN.
PENSTOCK_INLINE Lanes exponential(Lanes x) {
  const Lanes clamped = x > 88.0F ? Lanes(88.0F) : (x < -87.3F ? Lanes(-87.3F) : x);
  // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
  const Lanes magic = 12582912.0F;
  const Lanes shifted = fused(clamped, Lanes(1.44269504F), magic);
  const Lanes n = shifted - magic;
  // ln(2) in two parts; the first has 9 trailing zero bits, so n * part is exact.
  Lanes r = fused(n, Lanes(-0.693145751953125F), clamped);
  r = fused(n, Lanes(-1.42860682e-6F), r);
  Lanes p = 1.98412698e-4F;
  p = fused(p, r, Lanes(1.38888889e-3F));
  p = fused(p, r, Lanes(8.33333333e-3F));
  p = fused(p, r, Lanes(4.16666667e-2F));
  p = fused(p, r, Lanes(1.66666667e-1F));
  p = fused(p, r, Lanes(0.5F));
  p = fused(p, r, Lanes(1.0F));
  p = fused(p, r, Lanes(1.0F));
  const Words exponent = (__builtin_bit_cast(Words, shifted) - 0x4B400000U + 127U) << 23;
  const Lanes result = p * __builtin_bit_cast(Lanes, exponent);
  return x < -87.3F ? Lanes(0.0F) : result;
}

// Applies `f` to 16 elements at a time; the tail goes through the same f in a padded vector.
template <typename F>
PENSTOCK_INLINE void for_lanes(std::size_t n, F f) {
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    f(i, kLanes);
  if (i < n) f(i, n - i);
}
PENSTOCK_INLINE Lanes load_n(const float* p, std::size_t n, float fill) {
  return n == kLanes ? load(p) : load_part(p, n, fill);
}
PENSTOCK_INLINE void store_n(float* p, std::size_t n, Lanes v) {
  if (n == kLanes) {
    store(p, v);
  } else {
    store_part(p, n, v);
  }
}

void rms_norm(const float* x, const float* weight, float epsilon, std::size_t n, float* out) {
  Lanes sums = 0.0F;
  for_lanes(n, [&](std::size_t i, std::size_t m) __attribute__((always_inline)) {
    const Lanes v = load_n(x + i, m, 0.0F);
    sums = fused(v, v, sums);
  });
  const float mean = fold_sum(sums) / static_cast<float>(n);
  const Lanes factor = 1.0F / __builtin_sqrtf(mean + epsilon);
  for_lanes(n, [&](std::size_t i, std::size_t m) __attribute__((always_inline)) {
    store_n(out + i, m, (load_n(x + i, m, 0.0F) * factor) * load_n(weight + i, m, 0.0F));
  });
}

void silu_multiply(const float* gate, const float* up, std::size_t n, float* out) {
  for_lanes(n, [&](std::size_t i, std::size_t m) __attribute__((always_inline)) {
    const Lanes g = load_n(gate + i, m, 0.0F);
    store_n(out + i, m, g / (exponential(-g) + 1.0F) * load_n(up + i, m, 0.0F));
  });
}

void sigmoid(const float* x, std::size_t n, float* out) {
  for_lanes(n, [&](std::size_t i, std::size_t m) __attribute__((always_inline)) {
    store_n(out + i, m, 1.0F / (exponential(-load_n(x + i, m, 0.0F)) + 1.0F));
  });
}

void multiply_add(float factor, const float* x, std::size_t n, float* accumulator) {
  for_lanes(n, [&](std::size_t i, std::size_t m) __attribute__((always_inline)) {
    store_n(accumulator + i, m,
            fused(Lanes(factor), load_n(x + i, m, 0.0F), load_n(accumulator + i, m, 0.0F)));
  });
}

void exp_scaled(const float* x, float shift, float factor, std::size_t n, float* out) {
  for_lanes(n, [&](std::size_t i, std::size_t m) __attribute__((always_inline)) {
    store_n(out + i, m, exponential((load_n(x + i, m, 0.0F) - shift) * factor));
  });
}

float max_value(const float* x, std::size_t n) {
  Lanes best = -kInfinity;
  for_lanes(n, [&](std::size_t i, std::size_t m) __attribute__((always_inline)) {
    best = larger(load_n(x + i, m, -kInfinity), best);
  });
  return fold_max(best);
}

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

// Calls the tile of exactly `rows` rows.
template <typename W, unsigned Rows = kTileRows>
PENSTOCK_INLINE void tile_of(unsigned rows, const float* a, std::size_t lda, const W* b,
                             std::size_t ldb, float* c, std::size_t ldc, unsigned k, bool add) {
  if (rows == Rows) {
    tile<Rows>(a, lda, b, ldb, c, ldc, k, add);
  } else if constexpr (Rows > 1) {
    tile_of<W, Rows - 1>(rows, a, lda, b, ldb, c, ldc, k, add);
  }
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

constexpr Kernels kTable = {
    PENSTOCK_INSTRUCTION_SET,
    matmul,
    rms_norm,
    silu_multiply,
    sigmoid,
    multiply_add,
    exp_scaled,
    max_value,
    load_block,
    attend_block,
};

}  // namespace
}  // namespace penstock::engine
