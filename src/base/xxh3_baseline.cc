#define XXH3_VARIANT kXxh3Baseline
#include "base/xxh3_variant.h"
