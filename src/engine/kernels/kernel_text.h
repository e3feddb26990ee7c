// The text of the kernels, included once by each kernels_<set>.cc, which is compiled with that
// set's flags and defines PENSTOCK_TILE_ROWS and PENSTOCK_INSTRUCTION_SET. Everything here and in
// its parts (kernel_lanes.h, kernel_products.h, kernel_attention.h) has internal linkage and uses
// no library code, so nothing compiled for a newer CPU can leak into the rest of the program.
#pragma once

#include "engine/kernels/kernel_attention.h"

namespace penstock::engine {
namespace {

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
