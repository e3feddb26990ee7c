#include "base/xxh3.h"

namespace penstock {

const Xxh3& xxh3() {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  static const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0;
  if (has_avx512) return kXxh3Avx512;
  return has_avx2 ? kXxh3Avx2 : kXxh3Baseline;
#else
  return kXxh3Baseline;
#endif
}

}  // namespace penstock
