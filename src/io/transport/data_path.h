// DataPath: what differs between shm, tcp and ucx: how the bytes of a read come.
//
// A connection (connection.h) has one: on the side that connected a reader, on the other an owner.
// Greetings, messages, pings and the end are the connection's.
//
// Invariants: a reader ends each read that was started at most once, through Hub::read_ended(),
// never inside start_read(); none after abandon(), whose read's memory is not touched any more.
// Nothing is called by a path after shut(). Errors: from a greeting or a frame, they end the
// connection. Concurrency: the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/result.h"
#include "io/transport/wire.h"

namespace penstock::transport {

class DataPath {
 public:
  virtual ~DataPath() = default;

  // --- The side that connected
  virtual Hello hello() = 0;
  // The answer; Connection::ready() tells when reads can start.
  virtual Status welcomed(const Welcome& welcome) = 0;
  virtual void start_read(std::uint64_t read, const RemoteSlice& slice, std::byte* into) = 0;
  virtual void abandon(std::uint64_t read) = 0;

  // --- The side that was connected to
  virtual Result<Welcome> greeted(const Hello& hello) = 0;
  // Called for pools that are published later.
  virtual void published(std::uint32_t pool) = 0;

  // --- Both: a frame that is none of the connection's, and the end.
  virtual Status frame(Kind kind, std::string_view body) = 0;
  virtual void shut() = 0;
};

}  // namespace penstock::transport
