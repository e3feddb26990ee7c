// Unix stream sockets that carry bytes and descriptors, without blocking.
//
// Invariants: a descriptor arrives before or with the first byte it was sent with. Sockets are
// non-blocking and close on exec. Limits: kDescriptorsMax a read; more are closed by the kernel.
// Errors: kInvalidArgument (path), kConflict (somebody listens there), kOverloaded, kIo.
// Concurrency: one thread an object. Source: unix(7), cmsg(3); docs/protocol/kv.md, handoff.md.
#pragma once

#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "io/files/descriptor.h"

namespace penstock::sockets {

inline constexpr std::size_t kDescriptorsMax = 4;

// Listens at `path`, for the owner only; a stale socket there is replaced.
Result<Descriptor> listen_at(const std::string& path);
// Connects at once; kOverloaded when more wait to be accepted there than the listener lets wait.
Result<Descriptor> connect_to(const std::string& path);
Result<sockaddr_un> unix_address(const std::string& path);

// Receives what is there, at most `room` bytes. nullopt: nothing now; 0: the peer has ended.
Result<std::optional<std::size_t>> receive(int socket, char* to, std::size_t room,
                                           std::vector<Descriptor>& descriptors);

// An eventfd: wakes a thread that polls it.
class WakeEvent {
 public:
  WakeEvent();
  void wake() const;
  void clear() const;
  int fd() const { return fd_.get(); }

 private:
  Descriptor fd_;
};

// Frames that wait to be sent, some with a descriptor.
class SendQueue {
 public:
  // `descriptor` travels with the first byte; it stays the caller's and open until it is sent.
  void push(std::string_view bytes, int descriptor = -1);
  // Sends what the socket takes; true when nothing is left.
  Result<bool> flush(int socket);
  std::size_t bytes() const { return bytes_; }
  bool empty() const { return parts_.empty(); }
  std::uint64_t sent() const { return sent_; }  // bytes taken by sockets, ever
  void clear();

 private:
  struct Part {
    std::string bytes;
    std::size_t sent = 0;
    int descriptor = -1;
  };
  std::deque<Part> parts_;
  std::size_t bytes_ = 0;
  std::uint64_t sent_ = 0;
};

}  // namespace penstock::sockets
