// The data path of ucx, for RDMA fabrics: requests and verdicts on the control connection, bytes as
// UCX's active messages (ucx_worker.h). Where the build has no UCX, there are only errors.
//
// A slice is asked for in pieces of 1 MiB, one after the other; the owner looks at the generation
// before each is handed to UCX and after UCX is done with it, and the second look is the verdict. A
// piece is there when bytes and verdict are, in either order. UCX trusts what peers send it, its
// addresses too: use it where all peers are ours.
//
// Source: data_path.h; docs/design/0006-transport.md. Concurrency: the loop's thread.
#pragma once

#include <memory>

#include "base/result.h"
#include "io/transport/data_path.h"

namespace penstock::transport {

class Connection;

std::unique_ptr<DataPath> ucx_owner(Connection& connection);
std::unique_ptr<DataPath> ucx_reader(Connection& connection);

}  // namespace penstock::transport
