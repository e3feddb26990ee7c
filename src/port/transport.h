// Transport: the KV data plane between worker processes: small messages, and reads of memory that
// a peer has published. Implemented by io/transport (shm, tcp, ucx), the simulator and tests.
//
// A process publishes its KV pools, listens at one address, and connects to those of peers. Both
// ends of a connection may send messages; only the end that connected reads. Reads are many at a
// time, each with a deadline, and write straight into the caller's memory.
//
// Reading a peer's memory (design.md section 4): a read names (pool, block, generation, place,
// length, checksum), all from a ticket that came as a message, never out of the data. `shm` copies
// from the mapped pool between two looks at the block's generation word; over `tcp` and `ucx` the
// owner looks, before and after it took the bytes. The owner also asks `readable` first, over every
// transport that involves it. A read is kDone only when the generation was right both times and the
// bytes' checksum is the one that was asked for.
//
// Invariants: a read's `done` is called exactly once, never inside read(); after it, and after
// cancel() has returned, `into` is not touched. Messages of one connection arrive whole and in
// order. `closed` is the last event of a connection, and by then all its reads have ended. A peer
// that dies is noticed within a second also when nothing is under way; one that is stopped
// (SIGSTOP) or unreachable is not: deadlines are for that. Limits: connections, reads under way and
// bytes queued per connection, message size. Errors: connect() that can't even start, send() to
// nobody (kUnavailable) or beyond the queue (kOverloaded). Everything later is `closed` with a
// reason, or a ReadEnd. Concurrency: everything on the transport's one thread, events too, except
// clock().post(). Source: shared facts on transports; docs/protocol/handoff.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/units.h"
#include "port/clock.h"

namespace penstock {

// One connection, made or accepted; never used twice in a process.
using PeerId = Id<struct PeerTag>;
using ReadId = Id<struct ReadTag>;  // 0 is never given out

// A KV pool for peers to read: memfd with generation words and payloads as in engine/kv_pool.h.
struct PublishedPool {
  int fd = -1;                      // stays the caller's, open as long as the transport
  const std::byte* base = nullptr;  // the same memory, mapped
  std::size_t bytes = 0;
  std::size_t payload_offset = 0;  // of block 0
  std::size_t block_bytes = 0;     // payload of one block
  std::uint32_t blocks = 0;        // generation words: uint64[blocks] at offset 0
};

// What a read asks for. `offset` counts from the start of the block's payload.
struct RemoteSlice {
  std::uint32_t pool = 0;  // the owner's number for it, from publish()
  std::uint32_t block = 0;
  std::uint64_t generation = 0;
  std::uint32_t offset = 0;
  std::uint32_t length = 0;
  std::uint64_t checksum = 0;  // checksum64 of the bytes
};

enum class ReadEnd : std::uint8_t {
  kDone,     // the bytes are there and right
  kStale,    // the block has another generation: its owner has used it for something else
  kCorrupt,  // the bytes don't match the checksum
  kRefused,  // the owner does not let this peer read it, or there is no such place
  kGone,     // the connection ended
  kDeadline,
};

struct TransportEvents {
  std::function<void(PeerId)> accepted;                        // somebody connected to us
  std::function<void(PeerId)> opened;                          // our connect() has succeeded
  std::function<void(PeerId, std::string_view)> message;       // valid during the call
  std::function<void(PeerId, const std::string& why)> closed;  // also when connecting failed
  // May `peer`, which is connected to us, read this block of this generation now? Not set: no.
  std::function<bool(PeerId, std::uint32_t pool, std::uint32_t block, std::uint64_t generation)>
      readable;
};

class Transport {
 public:
  using ReadDone = std::function<void(ReadEnd)>;

  virtual ~Transport() = default;
  // The loop's clock: timers and posted calls run on the transport's thread.
  virtual Clock& clock() = 0;
  // Before anything is connected or accepted; once. The thread of io/transport starts with it.
  virtual void set_events(TransportEvents events) = 0;
  // The number by which peers name the pool: 0, 1, ... in the order of the calls.
  virtual std::uint32_t publish(const PublishedPool& pool) = 0;
  // Where peers reach this process: "shm:/path", "tcp:host:port", "ucx:...".
  virtual std::string address() const = 0;

  // Starts to connect; ends in `opened` or `closed`.
  virtual Result<PeerId> connect(const std::string& address, Instant deadline) = 0;
  virtual Status send(PeerId peer, std::string_view message) = 0;
  // Ends the connection. `closed` is not called for it; its reads end with kGone, in a later turn.
  virtual void close(PeerId peer) = 0;

  virtual ReadId read(PeerId peer, const RemoteSlice& slice, std::byte* into, Instant deadline,
                      ReadDone done) = 0;
  // `done` is not called any more.
  virtual void cancel(ReadId read) = 0;
};

}  // namespace penstock
