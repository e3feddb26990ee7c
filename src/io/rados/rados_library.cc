#if PENSTOCK_RADOS
#include "io/rados/rados_library.h"

#include <dlfcn.h>

#include <fmt/format.h>

namespace penstock::rados {
namespace {

Result<RadosLibrary> load() {
  void* library = ::dlopen("librados.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return fail(
        ErrorCode::kUnavailable,
        fmt::format("cannot load librados.so.2: {}. Install the package librados2", ::dlerror()));
  RadosLibrary functions;
#define PENSTOCK_RADOS_LOAD(name)                                                                \
  functions.name = reinterpret_cast<decltype(functions.name)>(::dlsym(library, "rados_" #name)); \
  if (functions.name == nullptr)                                                                 \
    return fail(ErrorCode::kUnavailable, "librados.so.2 has no rados_" #name                     \
                                         ": it is too old. Install librados2 "                   \
                                         "of Ceph 16 or later");
  PENSTOCK_RADOS_FUNCTIONS(PENSTOCK_RADOS_LOAD)
#undef PENSTOCK_RADOS_LOAD
  return functions;
}

}  // namespace

Result<const RadosLibrary*> load_rados() {
  static const Result<RadosLibrary> functions = load();
  if (!functions) return std::unexpected(functions.error());
  return &*functions;
}

}  // namespace penstock::rados
#endif
