// Connection: one peer, from its greeting to its end.
//
// The side that connected says hello, the other welcome; what they need to move bytes stands in
// there. Then both send messages. Over tcp and ucx each side pings four times a second, so that a
// host that is gone is noticed by its silence (the kernel answers for a process that is stopped);
// over shm the peer's pidfd tells of its death.
//
// Invariants and errors: as port/transport.h; everything goes to the Hub, nothing after shut().
// Concurrency: the loop's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "io/transport/control_socket.h"
#include "io/transport/data_path.h"
#include "port/transport.h"

namespace penstock::transport {

class Hub;

class Connection {
 public:
  enum class Side : std::uint8_t { kConnected, kAccepted };

  Connection(Hub& hub, PeerId peer, Side side, Driver driver);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The rest of the making: `path` may call this connection from now on.
  void start(Descriptor socket, ControlSocket::Begin begin, std::unique_ptr<DataPath> path,
             std::string input = {});

  Status send(std::string_view message);
  void start_read(std::uint64_t read, const RemoteSlice& slice, std::byte* into) {
    path_->start_read(read, slice, into);
  }
  void abandon(std::uint64_t read) { path_->abandon(read); }
  void published(std::uint32_t pool);
  // Says goodbye and closes everything.
  void shut(std::string_view why);

  // --- For the data path
  Hub& hub() const { return hub_; }
  PeerId peer() const { return peer_; }
  Side side() const { return side_; }
  Driver driver() const { return driver_; }
  ControlSocket& control() { return *control_; }
  // Reads can start.
  void ready();
  // The connection has failed.
  void fail_with(const std::string& why);

 private:
  enum class State : std::uint8_t { kNew, kGreeted, kOpen, kShut };

  void connected();
  Status take(const Head& head, std::string_view body);
  void watch_process();
  void ping();

  Hub& hub_;
  PeerId peer_;
  Side side_;
  Driver driver_;
  State state_ = State::kNew;
  std::unique_ptr<ControlSocket> control_;
  std::unique_ptr<DataPath> path_;
  Descriptor process_;  // shm: the peer's pidfd
  EventLoop::WatchId process_watch_ = 0;
  Clock::TimerId ping_ = 0;
};

}  // namespace penstock::transport
