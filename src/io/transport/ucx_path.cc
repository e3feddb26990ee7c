#include "io/transport/ucx_path.h"

#include "io/transport/transport_options.h"

#if !PENSTOCK_UCX

namespace penstock::transport {

bool has_ucx() {
  return false;
}

std::unique_ptr<DataPath> ucx_owner(Connection&) {
  return nullptr;
}

Result<std::unique_ptr<DataPath>> ucx_reader(Connection&) {
  return fail(ErrorCode::kUnsupported, "this build has no UCX");
}

}  // namespace penstock::transport

#endif
