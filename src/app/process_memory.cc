#include "app/process_memory.h"

#include <malloc.h>

namespace penstock {
namespace {

constexpr int kMappedMin = 4 << 20;  // larger blocks are mapped, and given back when they are freed
constexpr int kKeptMax = 16 << 20;   // at the end of a heap

}  // namespace

void keep_freed_memory() {
#if defined(__GLIBC__)
  ::mallopt(M_MMAP_THRESHOLD, kMappedMin);
  ::mallopt(M_TRIM_THRESHOLD, kKeptMax);
  ::mallopt(M_TOP_PAD, 1 << 20);
#endif
}

}  // namespace penstock
