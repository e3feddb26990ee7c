// Messages of the KV daemon <-> frames of proto/kv.proto: pure conversions.
//
// A frame is a 4-byte little-endian length and that many bytes of one ClientFrame or DaemonFrame.
// FrameBuffer cuts a stream into them. Decoding takes what a peer sent: it checks the shape of the
// one message (columns as long as each other, values in range); what depends on other messages is
// the business of who gets it.
//
// Invariants: decode(encode(x)) equals x for every value within the limits below, except that a
// Granted too large for one frame becomes several whose concatenation it is.
// Errors: kDataLoss for bytes that are no message; kPayloadTooLarge when a message does not fit.
// Concurrency: pure. Source: docs/protocol/kv.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "domain/kv_messages.h"

namespace penstock::kv {

inline constexpr std::size_t kFrameBytesMax = std::size_t{32} << 20;
inline constexpr std::size_t kLayoutSlicesMax = 1U << 16;
inline constexpr std::uint32_t kSliceBytesMax = 1U << 30;
inline constexpr std::uint32_t kBlockTokensMax = 1U << 16;
inline constexpr double kPrefillSecondsMax = 1e6;

// Appends the frame, or frames, of `message` to `out`; on failure nothing is appended.
Status append_frame(const ClientMessage& message, std::string& out);
Status append_frame(const DaemonMessage& message, std::string& out);

// `bytes` is one frame without its length.
Result<ClientMessage> decode_client(std::string_view bytes);
Result<DaemonMessage> decode_daemon(std::string_view bytes);

class FrameBuffer {
 public:
  // Room for at least `bytes` more at the end; commit() says how many were written there.
  char* reserve(std::size_t bytes);
  void commit(std::size_t bytes) { end_ += bytes; }
  // The next whole frame's bytes, valid until the next reserve(); nullopt when it has not arrived.
  Result<std::optional<std::string_view>> next();

 private:
  std::string bytes_;
  std::size_t begin_ = 0;  // of what next() has not returned
  std::size_t end_ = 0;    // of what was received
};

}  // namespace penstock::kv
