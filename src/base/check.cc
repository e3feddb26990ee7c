#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace penstock {

void check_failed(const char* file, int line, std::string_view expression) {
  std::fprintf(stderr, "penstock: ENSURE failed at %s:%d: %.*s\n", file, line,
               static_cast<int>(expression.size()), expression.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace penstock
