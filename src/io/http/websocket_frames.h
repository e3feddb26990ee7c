// WebSocket frames, the server's side: handshake fields, a reader of masked frames, a writer.
//
// The reader takes bytes cut anywhere and gives whole text messages and control frames, in order;
// fragments are joined, control frames may stand between them. What RFC 6455 forbids a client
// (unmasked frames, reserved bits or opcodes, long or cut control frames, lengths that are not in
// their shortest form, bad close codes) ends the connection with the close code that says so. No
// extension and no subprotocol is ever agreed to, and binary messages are not taken.
//
// Invariants: the events do not depend on how the bytes were cut; no more than `message_bytes_max`
// is held; after a fault nothing is read. Text is not checked for UTF-8: who reads it does that.
// Errors: CloseReason. Concurrency: values. Source: RFC 6455 sections 4, 5 and 7.4.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "port/http.h"

namespace penstock::http {

enum class Opcode : std::uint8_t {
  kContinuation = 0,
  kText = 1,
  kBinary = 2,
  kClose = 8,
  kPing = 9,
  kPong = 10
};

struct CloseReason {
  std::uint16_t code = 1000;
  std::string text = {};  // at most 123 bytes
  bool operator==(const CloseReason&) const = default;
};

// kText, kPing, kPong or kClose.
struct FrameEvent {
  Opcode kind = Opcode::kText;
  std::string payload;     // of a close: what stands behind its code
  std::uint16_t code = 0;  // of a close: 1005 when it had none
  bool operator==(const FrameEvent&) const = default;
};

class FrameReader {
 public:
  explicit FrameReader(std::size_t message_bytes_max) : message_bytes_max_(message_bytes_max) {}

  // Appends what is complete. After a close event, and after a fault, nothing more is read.
  std::expected<void, CloseReason> feed(std::string_view bytes, std::vector<FrameEvent>& events);
  // Bytes of a message that is not complete.
  std::size_t held() const { return message_.size(); }

 private:
  std::expected<void, CloseReason> begin_frame();
  std::expected<void, CloseReason> end_frame(std::vector<FrameEvent>& events);
  std::expected<void, CloseReason> take_close(std::vector<FrameEvent>& events);

  std::size_t message_bytes_max_;
  std::string head_;  // of the frame that comes; at most 14 bytes
  bool in_payload_ = false;
  Opcode opcode_ = Opcode::kText;
  bool final_ = false;
  std::array<char, 4> mask_{};
  std::uint64_t size_ = 0;   // of the frame's payload
  std::uint64_t done_ = 0;   // of it
  bool in_message_ = false;  // a text message has begun and not ended
  std::string message_;
  std::string control_;
  bool over_ = false;
};

// The bytes before the payload of a frame as a server sends it: whole, unmasked.
std::string frame_head(Opcode opcode, std::size_t payload_bytes);
// A whole close frame.
std::string close_frame(const CloseReason& reason);

// What is wrong with a request's opening handshake; the value of Sec-WebSocket-Accept if nothing
// is. kUnsupported is a version that is not spoken here (RFC 6455 4.4).
Result<std::string> websocket_accept(const HttpRequest& request);

}  // namespace penstock::http
