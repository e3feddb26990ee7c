// The data path of shm: the owner sends its pools' descriptors, the reader maps and copies.
//
// The owner opens each memfd again, to read only, and sends that descriptor with the pool's shape;
// a reader can't write through it, and maps only what can't shrink. Owners take no part in reads.
// Source: data_path.h; design.md section 4.
#pragma once

#include <memory>

#include "io/transport/data_path.h"

namespace penstock::transport {

class Connection;

std::unique_ptr<DataPath> shm_owner(Connection& connection);
std::unique_ptr<DataPath> shm_reader(Connection& connection);

}  // namespace penstock::transport
