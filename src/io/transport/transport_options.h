// What a transport is opened with, and its limits. Concurrency: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "port/transport.h"

namespace penstock::transport {

struct TransportLimits {
  std::size_t connections_max = 256;       // made and accepted, each counted alone
  std::size_t reads_max = 1024;            // under way per connection, at most kReadsMax
  std::size_t queued_bytes_max = 8 << 20;  // of messages that wait to be sent, per connection
  std::uint8_t tcp_streams = 2;            // connections that carry bytes per tcp peer, 1 to 4
  Duration greeting_max = std::chrono::seconds(5);       // an accepted peer says who it is
  Duration unreachable_after = std::chrono::seconds(1);  // no sign of a host over tcp and ucx
};

inline constexpr std::size_t kReadsMax = 4096;

struct TransportOptions {
  // "shm:/path", "tcp:host:port" or "ucx:host:port"; empty: it only connects.
  std::string listen;
  TransportLimits limits;
  // For tests: called between the two looks at a generation word, by the side that looks.
  std::function<void()> between_looks;
};

// Opens a transport. Its thread starts with set_events(); until then, set_events(), publish() and
// clock().call_at() belong to the caller's thread, and nobody is accepted. Its destructor, called
// on another thread than its own, ends that thread and all connections; nothing is called any more.
// Errors: kInvalidArgument (address, limits), kConflict (somebody listens there), kUnsupported (ucx
// is not in this build), kIo.
Result<std::unique_ptr<Transport>> open_transport(TransportOptions options);

// Whether this build has the driver "ucx".
bool has_ucx();

}  // namespace penstock::transport
