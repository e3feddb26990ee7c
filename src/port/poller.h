// Poller: tells a shard when its descriptors can be read or written.
//
// One Poller belongs to one shard (one thread), beside its Clock. Production implements it on the
// shard's io_context (io/http/asio_clock.h), tests and benches on poll() (io/control/poll_loop.h).
//
// Invariants: a call runs on the shard's thread, once, never inside when_...(), and not after the
// watch is destroyed; the end of a stream and errors count as readable and writable. At most one
// call waits for each direction of a watch. The watch does not own the descriptor, which must not
// be closed before the watch is destroyed; bytes left unread make the next when_readable() call at
// once. Concurrency: shard thread only.
#pragma once

#include <functional>
#include <memory>

namespace penstock {

class Watch {
 public:
  virtual ~Watch() = default;
  virtual void when_readable(std::function<void()> call) = 0;
  virtual void when_writable(std::function<void()> call) = 0;
};

class Poller {
 public:
  virtual ~Poller() = default;
  // Of an open socket or pipe.
  virtual std::unique_ptr<Watch> watch(int fd) = 0;
};

}  // namespace penstock
