// Pins the floating-point mode of the calling thread while the engine computes.
//
// Rounding to nearest, no flush-to-zero, no denormals-are-zero: the reset value of MXCSR. A host
// program may have changed it (some libraries turn flush-to-zero on), which would change bits.
// Concurrency: affects the calling thread only; restores its mode on destruction.
#pragma once

#include <xmmintrin.h>

namespace penstock::engine {

class FloatEnvironment {
 public:
  FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~FloatEnvironment() { _mm_setcsr(saved_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  static constexpr unsigned kDefault = 0x1F80;  // all exceptions masked, nearest, no FTZ, no DAZ
  unsigned saved_;
};

}  // namespace penstock::engine
