// Compiled with -mavx2 (CMakeLists.txt) where the compiler has it.
#define XXH3_VARIANT kXxh3Avx2
#include "base/xxh3_variant.h"
