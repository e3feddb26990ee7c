// The data path of ucx. Where the build has no UCX, there are only errors.
#pragma once

#include <memory>

#include "base/result.h"
#include "io/transport/data_path.h"

namespace penstock::transport {

class Connection;

std::unique_ptr<DataPath> ucx_owner(Connection& connection);
Result<std::unique_ptr<DataPath>> ucx_reader(Connection& connection);

}  // namespace penstock::transport
