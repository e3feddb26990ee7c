// Compiled with -mavx512f (CMakeLists.txt) where the compiler has it.
#define XXH3_VARIANT kXxh3Avx512
#include "base/xxh3_variant.h"
