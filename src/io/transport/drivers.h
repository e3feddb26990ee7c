// Drivers: addresses, the listener, and the making of connections.
//
// "shm:/path" listens at a Unix socket for its owner only; "tcp:host:port" and "ucx:host:port" at a
// TCP port, where a reader's further connections come in as well. A process listens at one address
// and connects to any. Names are looked up at once, which may block: addresses that come from peers
// should be numbers.
//
// Limits: connections that have not said what they are count like those that have, and have as
// long; when descriptors run out, accepting pauses. Errors: kInvalidArgument (address), kConflict
// (somebody listens there), kUnsupported (ucx is not in this build), kIo.
// Concurrency: the loop's thread, or before it runs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "io/sockets/tcp_socket.h"
#include "io/transport/connection.h"
#include "io/transport/event_loop.h"

namespace penstock::transport {

struct Target {
  Driver driver = Driver::kShm;
  std::string text;         // the address without its kind
  sockets::TcpAddress tcp;  // of tcp and ucx
};

// Takes the sockets of those who present a token.
using Joined = std::function<void(Descriptor socket)>;

class Drivers {
 public:
  static Result<std::unique_ptr<Drivers>> open(Hub& hub, const std::string& listen);
  ~Drivers();

  // What others connect to, with the port that was taken; empty when nobody can.
  const std::string& address() const { return address_; }
  // Accepts from now on.
  void start();
  static Result<Target> parse(const std::string& address);
  // Failures that come later are told through Hub::broken().
  Status connect(Connection& connection, const Target& target);

  // Sockets that present this token go to `joined`, until forget().
  void expect(const Token& token, Joined joined);
  void forget(const Token& token);

 private:
  // An accepted TCP socket that has not said yet what it is.
  struct Guest {
    Descriptor socket;
    EventLoop::WatchId watch = 0;
    Clock::TimerId timer = 0;
    std::string input;
  };

  explicit Drivers(Hub& hub) : hub_(hub) {}
  void accept();
  void pause();
  void welcome(std::uint64_t guest);
  void dismiss(std::uint64_t guest);
  void begin(Descriptor socket, std::string input);
  void connect_shm(PeerId peer, const std::string& path);
  std::unique_ptr<DataPath> owner(Connection& connection);

  Hub& hub_;
  Driver driver_ = Driver::kShm;  // listened with
  std::string address_;
  std::string path_;  // of the Unix socket
  Descriptor listener_;
  EventLoop::WatchId watch_ = 0;
  std::map<std::uint64_t, Guest> guests_;
  std::uint64_t last_guest_ = 0;
  std::map<Token, Joined> expected_;
};

}  // namespace penstock::transport
