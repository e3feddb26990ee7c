// The data path of tcp: a few connections beside the first, on which a reader asks and the owner
// answers with the bytes.
//
// A reader asks on the stream with the least under way; each stream answers in order. The owner
// looks at the generation when it begins to hand bytes to the kernel, straight from the pool, and
// again when the last one is handed over: that second look is the verdict, sent after the bytes.
// The reader receives straight into the destination and hashes each piece while it is in cache.
//
// Source: data_path.h; docs/design/0006-transport.md. Errors: what a peer may not say ends the
// connection. Concurrency: the loop's thread.
#pragma once

#include <memory>

#include "io/sockets/tcp_socket.h"
#include "io/transport/data_path.h"

namespace penstock::transport {

class Connection;
class Drivers;

std::unique_ptr<DataPath> tcp_owner(Connection& connection, Drivers& drivers);
std::unique_ptr<DataPath> tcp_reader(Connection& connection, const sockets::TcpAddress& address);

}  // namespace penstock::transport
