// FramedSocket: protobuf messages over a stream socket, each with its length before it.
//
// A frame is a 4-byte little-endian length and as many bytes of one message. Reading goes through a
// buffer, so a burst of small frames costs one system call; reading and writing wait, or do what
// can be done at once.
//
// Addresses: "unix:/path", "host:port" and "[v6]:port".
// Limits: kMessageBytesMax a frame; a longer length ends the stream before anything is read.
// Errors: kInvalidArgument (address), kConflict (somebody listens at the path), kIo, kDataLoss
// (length over the limit, bytes that are no message), kCancelled (stopped while connecting).
// Concurrency: one reader and one writer thread at a time; shutdown() from any.
// Source: docs/protocol/engine.md; docs/design/0002-control-plane.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <google/protobuf/message_lite.h>

#include "base/result.h"
#include "io/files/descriptor.h"

namespace penstock::control {

class FramedSocket {
 public:
  FramedSocket() = default;
  explicit FramedSocket(Descriptor fd) : fd_(std::move(fd)) {}

  // Connects, looking every tenth of a second whether `stop` was set.
  static Result<FramedSocket> connect(const std::string& address, const std::atomic<bool>& stop);

  int fd() const { return fd_.get(); }

  // Reads one frame, waiting for it; false at the end of the stream.
  Result<bool> read(google::protobuf::MessageLite& message);
  // Reads one frame if it has come whole.
  enum class Read : std::uint8_t { kFrame, kNotYet, kEnd };
  Result<Read> read_some(google::protobuf::MessageLite& message);
  // Sends what the socket takes at once, from `bytes` on; returns how many bytes that was.
  Result<std::size_t> write_some(std::string_view bytes);
  // Sends all, waiting as long as it takes.
  Status write_all(std::string_view bytes);
  // Wakes whoever reads or writes; both see the end.
  void shutdown();
  // No more writes; the peer sees the end after what was sent.
  void shutdown_write();

 private:
  enum class Wait : std::uint8_t { kNo, kYes };
  Result<Read> fill(std::size_t needed, Wait wait);
  Result<Read> read(google::protobuf::MessageLite& message, Wait wait);

  Descriptor fd_;
  std::string buffer_;     // received bytes
  std::size_t begin_ = 0;  // of buffer_ that is not consumed yet
};

// Makes `out` the beginning of a frame, to which a message is appended, and completes it.
void begin_frame(std::string& out);
void end_frame(std::string& out);
// Replaces `out` by the frame of `message`.
void frame_of(const google::protobuf::MessageLite& message, std::string& out);

class Listener {
 public:
  // Listens; a Unix socket is made for its owner only and a stale one at the path is replaced.
  static Result<Listener> open(const std::string& address);
  ~Listener();
  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&&) noexcept = default;

  // What to connect to: the address with the port that was taken.
  const std::string& address() const { return address_; }
  // The next connection; an error after stop() or when the listener broke.
  Result<FramedSocket> accept();
  // Makes accept() fail from now on.
  void stop();

 private:
  Listener() = default;
  Descriptor fd_;
  std::string address_;
  std::string path_;  // of the Unix socket, empty for TCP
};

}  // namespace penstock::control
