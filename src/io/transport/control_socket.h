// ControlSocket: one stream socket of a connection, in frames, without blocking.
//
// It reads frames and hands each to its owner, and keeps what waits to be sent. The socket may
// still be connecting when it comes; frames are queued until then.
//
// Invariants: `ended` is called at most once, never inside push(), and nothing is called after it
// or after close(); both may happen inside `frame`. Memory: a frame's bytes as they arrive, never
// what its length says it will have. Errors: `ended` with a reason. Concurrency: the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/sockets/unix_socket.h"
#include "io/transport/event_loop.h"
#include "io/transport/wire.h"

namespace penstock::transport {

class ControlSocket {
 public:
  struct Events {
    std::function<void()> connected;
    // An error ends the connection. The body is valid during the call.
    std::function<Status(const Head& head, std::string_view body)> frame;
    std::function<void(const std::string& why)> ended;
  };

  enum class Begin : std::uint8_t { kConnected, kConnecting };

  // `input` is what has been read from the socket before, for take_input().
  ControlSocket(EventLoop& loop, Descriptor socket, Begin begin, Events events,
                std::string input = {});
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

  // Hands over the frames that came with the constructor.
  void take_input() { take_frames(); }
  // Sends a frame now or later; `descriptor` stays the caller's and open.
  void push(std::string_view frame, int descriptor = -1);
  // Takes what has come, if anything.
  void read_now() {
    if (is_open() && !connecting_) read();
  }
  // Says why, as far as the socket takes it at once, and closes.
  void close(std::string_view goodbye);

  std::size_t queued_bytes() const { return output_.bytes(); }
  bool is_open() const { return socket_.get() >= 0; }
  int fd() const { return socket_.get(); }
  // Descriptors that came and were not taken yet, in their order.
  std::vector<Descriptor>& descriptors() { return descriptors_; }

 private:
  void handle(std::uint32_t events);
  void read();
  void take_frames();
  void flush();
  void end(std::string why);
  void end_later(std::string why);
  void drop();

  EventLoop& loop_;
  Descriptor socket_;
  bool connecting_;
  Events events_;
  EventLoop::WatchId watch_ = 0;
  std::string input_;
  std::size_t begin_ = 0;  // of input_ that is not consumed yet
  std::vector<Descriptor> descriptors_;
  sockets::SendQueue output_;
  Clock::TimerId ending_ = 0;
};

}  // namespace penstock::transport
