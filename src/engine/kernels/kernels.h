// The arithmetic of the engine: one source text (kernel_text.h), compiled per instruction set.
//
// Each function is compiled three times from the same text over 16-lane vectors, so the order of
// every rounding is the same by construction: a matrix product gives each output one sequential
// chain of fused multiply-adds over k; reductions use 16 partial sums and one fixed tree; exp is
// ours.
//
// Units and shapes: all activations are float32, row-major, strides in elements. A panel holds 32
// outputs of a weight matrix, k-major: [k][32] of bfloat16 or float32. Accumulation is float32.
// Invariants: equal inputs give equal bits for every InstructionSet; results of a row do not depend
// on the other rows of a call. MXCSR must be the default (float_environment.h). Concurrency: pure
// functions over caller's memory. Source: docs/design/0003-one-arithmetic.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/instruction_set.h"

namespace penstock::engine {

inline constexpr std::uint32_t kPanelWidth = 32;
inline constexpr std::uint32_t kAttentionBlock = 64;  // keys per block, as in the KV pool

enum class WeightType : std::uint8_t { kBf16, kF32 };

// c[rows, columns] = (add ? c : 0) + a[rows, k] * panel[k, 32]; columns <= 32.
struct MatmulArgs {
  const float* a;  // [rows, k], stride lda
  std::size_t lda;
  const void* panels;  // [panel_count][k][32]
  WeightType type;
  float* c;  // [rows, columns], stride ldc
  std::size_t ldc;
  std::uint32_t rows;
  std::uint32_t k;
  std::uint32_t columns;  // outputs over all panels; the last panel may be partly used
  bool add;
};

// Widens one layer's slice of a KV block: rows [0, tokens) of [tokens][width] become `transposed`
// [width][64] and, of the first `latent` columns, `latents` [64][latent_stride]; the rest is zero.
struct LoadBlockArgs {
  const std::byte* slice;
  WeightType type;
  std::uint32_t tokens;  // 1..64 valid rows
  std::uint32_t width;
  std::uint32_t latent;
  std::size_t latent_stride;  // multiple of 32, >= latent
  float* transposed;
  float* latents;
};

// One step of online softmax attention: rows of queries against the keys of one loaded block.
// Row r sees keys [first[r], last[r]) of the block; an empty range leaves the row as it is.
struct AttendArgs {
  const float* q;  // [rows, width], stride q_stride
  std::size_t q_stride;
  std::uint32_t rows;
  std::uint32_t width;
  float scale;              // multiplies the finished dot product
  const float* transposed;  // [width][64]
  const float* latents;     // [64][latent_stride]
  std::size_t latent_stride;
  const std::uint32_t* first;  // [rows]
  const std::uint32_t* last;   // [rows]
  float* scores;               // scratch [rows][64]
  float* maximum;              // [rows], -inf at the start
  float* sum;                  // [rows], 0 at the start
  float* output;               // [rows][latent_stride], 0 at the start; divide by sum at the end
};

struct Kernels {
  InstructionSet set;
  void (*matmul)(const MatmulArgs& args);
  // out[i] = (x[i] * 1/sqrt(mean(x^2) + epsilon)) * weight[i]
  void (*rms_norm)(const float* x, const float* weight, float epsilon, std::size_t n, float* out);
  // out[i] = gate[i] / (1 + exp(-gate[i])) * up[i]
  void (*silu_multiply)(const float* gate, const float* up, std::size_t n, float* out);
  // out[i] = 1 / (1 + exp(-x[i]))
  void (*sigmoid)(const float* x, std::size_t n, float* out);
  // accumulator[i] = fma(factor, x[i], accumulator[i])
  void (*multiply_add)(float factor, const float* x, std::size_t n, float* accumulator);
  // out[i] = exp((x[i] - shift) * factor)
  void (*exp_scaled)(const float* x, float shift, float factor, std::size_t n, float* out);
  // The largest x[i] that is not NaN; -inf when there is none.
  float (*max_value)(const float* x, std::size_t n);
  void (*load_block)(const LoadBlockArgs& args);
  void (*attend_block)(const AttendArgs& args);
};

// The kernels of a set; the set must be supported().
const Kernels& kernels(InstructionSet set);

}  // namespace penstock::engine
