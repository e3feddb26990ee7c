// Text of the kernels, part 1: sixteen floats at a time, and exp. Included by kernel_text.h only.
//
// A Lanes is one register with AVX-512, two with AVX2, four with SSE2, where the fused multiply-add
// becomes calls of the C library's fmaf. All operations used are exactly rounded (+ - * / sqrt fma,
// comparisons, integer), so the lanes' values do not depend on how they are carried out.
#pragma once

#include "engine/kernels/kernels.h"

namespace penstock::engine {
namespace {

#define PENSTOCK_INLINE inline __attribute__((always_inline))

using Lanes = float __attribute__((ext_vector_type(16)));
using Words = unsigned __attribute__((ext_vector_type(16)));
using Halves = unsigned short __attribute__((ext_vector_type(16)));

constexpr unsigned kLanes = 16;
constexpr float kInfinity = __builtin_inff();

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

}  // namespace
}  // namespace penstock::engine
