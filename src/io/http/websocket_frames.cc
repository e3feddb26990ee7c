#include "io/http/websocket_frames.h"

#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "io/http/message.h"

namespace penstock::http {
namespace {

using Fault = std::expected<void, CloseReason>;

constexpr std::uint16_t kProtocolError = 1002;
constexpr std::uint16_t kNotAccepted = 1003;
constexpr std::uint16_t kNoCode = 1005;
constexpr std::uint16_t kTooLarge = 1009;
constexpr std::size_t kControlBytesMax = 125;
constexpr std::size_t kShortHead = 2;

Fault fault(std::uint16_t code, std::string text) {
  return std::unexpected(CloseReason{code, std::move(text)});
}

bool is_control(Opcode opcode) {
  return static_cast<std::uint8_t>(opcode) >= 8;
}

// How many bytes the length takes behind the first two.
std::size_t length_bytes(char second) {
  const int length = second & 0x7F;
  return length < 126 ? 0 : length == 126 ? 2 : 8;
}

std::uint64_t big_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (const char c : bytes)
    value = value << 8 | static_cast<unsigned char>(c);
  return value;
}

void append_big_endian(std::string& out, std::uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
    out.push_back(static_cast<char>(value >> shift & 0xFF));
}

// Codes that may stand in a close frame (RFC 6455 7.4 and its registry).
bool is_close_code(std::uint64_t code) {
  return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) ||
         (code >= 3000 && code <= 4999);
}

// 16 bytes in base64: 22 digits, of which the last stands for two bits, and "==".
bool is_key(std::string_view key) {
  const auto digit = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '/';
  };
  return key.size() == 24 && key.ends_with("==") && std::ranges::all_of(key.substr(0, 22), digit) &&
         std::string_view("AQgw").contains(key[21]);
}

}  // namespace

Fault FrameReader::begin_frame() {
  const auto first = static_cast<unsigned char>(head_[0]);
  final_ = (first & 0x80) != 0;
  if ((first & 0x70) != 0) return fault(kProtocolError, "a reserved bit is set");
  if ((static_cast<unsigned char>(head_[1]) & 0x80) == 0)
    return fault(kProtocolError, "frames of a client must be masked");
  const std::uint8_t opcode = first & 0x0F;
  if ((opcode > 2 && opcode < 8) || opcode > 10) return fault(kProtocolError, "unknown opcode");
  opcode_ = static_cast<Opcode>(opcode);

  const std::size_t extra = length_bytes(head_[1]);
  size_ = extra == 0 ? static_cast<std::uint64_t>(head_[1] & 0x7F)
                     : big_endian(std::string_view(head_).substr(kShortHead, extra));
  if ((extra == 2 && size_ < 126) || (extra == 8 && (size_ < 65536 || size_ >> 63 != 0)))
    return fault(kProtocolError, "a length must be in its shortest form");
  std::ranges::copy(std::string_view(head_).substr(kShortHead + extra, 4), mask_.begin());

  if (is_control(opcode_)) {
    if (!final_ || size_ > kControlBytesMax)
      return fault(kProtocolError, "a control frame is whole and at most 125 bytes long");
  } else {
    if (opcode_ == Opcode::kBinary) return fault(kNotAccepted, "messages here are text");
    if (in_message_ != (opcode_ == Opcode::kContinuation))
      return fault(kProtocolError, "fragments of one message must follow one another");
    if (size_ > message_bytes_max_ - message_.size())
      return fault(kTooLarge,
                   "a message is at most " + std::to_string(message_bytes_max_) + " bytes long");
    in_message_ = true;
  }
  head_.clear();
  done_ = 0;
  in_payload_ = true;
  return {};
}

Fault FrameReader::take_close(std::vector<FrameEvent>& events) {
  over_ = true;
  FrameEvent event{Opcode::kClose, {}, kNoCode};
  if (!control_.empty()) {
    const std::uint64_t code = big_endian(std::string_view(control_).substr(0, 2));
    if (control_.size() < 2 || !is_close_code(code))
      return fault(kProtocolError, "that is no close code");
    event.code = static_cast<std::uint16_t>(code);
    event.payload = control_.substr(2);
  }
  events.push_back(std::move(event));
  return {};
}

Fault FrameReader::end_frame(std::vector<FrameEvent>& events) {
  in_payload_ = false;
  if (is_control(opcode_)) {
    if (opcode_ == Opcode::kClose) return take_close(events);
    events.push_back({opcode_, std::exchange(control_, {}), 0});
  } else if (final_) {
    in_message_ = false;
    events.push_back({Opcode::kText, std::exchange(message_, {}), 0});
  }
  return {};
}

Fault FrameReader::feed(std::string_view bytes, std::vector<FrameEvent>& events) {
  while (!over_) {
    Fault status;
    if (!in_payload_) {
      const std::size_t wanted =
          head_.size() < kShortHead ? kShortHead : kShortHead + length_bytes(head_[1]) + 4;
      const std::string_view piece = bytes.substr(0, wanted - head_.size());
      head_ += piece;
      bytes.remove_prefix(piece.size());
      if (head_.size() < wanted) return {};
      if (wanted == kShortHead) continue;
      status = begin_frame();
    }
    if (status && in_payload_) {
      std::string& into = is_control(opcode_) ? control_ : message_;
      const auto count =
          static_cast<std::size_t>(std::min<std::uint64_t>(size_ - done_, bytes.size()));
      const std::size_t from = into.size();
      into += bytes.substr(0, count);
      for (std::size_t i = 0; i < count; ++i)
        into[from + i] = static_cast<char>(into[from + i] ^ mask_[(done_ + i) & 3]);
      done_ += count;
      bytes.remove_prefix(count);
      if (done_ < size_) return {};
      status = end_frame(events);
    }
    if (!status) {
      over_ = true;
      return status;
    }
  }
  return {};
}

std::string frame_head(Opcode opcode, std::size_t payload_bytes) {
  std::string head(1, static_cast<char>(0x80 | static_cast<std::uint8_t>(opcode)));
  if (payload_bytes < 126) {
    head.push_back(static_cast<char>(payload_bytes));
  } else if (payload_bytes < 65536) {
    head.push_back(126);
    append_big_endian(head, payload_bytes, 2);
  } else {
    head.push_back(127);
    append_big_endian(head, payload_bytes, 8);
  }
  return head;
}

std::string close_frame(const CloseReason& reason) {
  if (reason.code == kNoCode) return frame_head(Opcode::kClose, 0);
  const auto text = std::string_view(reason.text).substr(0, kControlBytesMax - 2);
  std::string frame = frame_head(Opcode::kClose, 2 + text.size());
  append_big_endian(frame, reason.code, 2);
  return frame += text;
}

Result<std::string> websocket_accept(const HttpRequest& request) {
  constexpr std::string_view kGuid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
  if (request.method != "GET" || !request.body.empty() ||
      !has_list_item(request.header("connection"), "upgrade") ||
      !has_list_item(request.header("upgrade"), "websocket")) {
    return fail(ErrorCode::kInvalidArgument,
                "a WebSocket begins with GET, 'connection: upgrade' and 'upgrade: websocket'");
  }
  if (request.header("sec-websocket-version") != "13")
    return fail(ErrorCode::kUnsupported, "the WebSocket version spoken here is 13 (RFC 6455)",
                "sec-websocket-version");
  const auto is_key_header = [](const HttpHeader& h) {
    return iequals(h.name, "sec-websocket-key");
  };
  const std::string_view key = request.header("sec-websocket-key");
  if (std::ranges::count_if(request.headers, is_key_header) != 1 || !is_key(key))
    return fail(ErrorCode::kInvalidArgument, "sec-websocket-key must be 16 bytes in base64, once",
                "sec-websocket-key");
  const std::string text = std::string(key).append(kGuid);
  std::array<unsigned char, 20> digest{};
  unsigned size = 0;
  ENSURE(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha1(), nullptr) == 1);
  std::array<unsigned char, 29> encoded{};  // 28 characters and a NUL
  EVP_EncodeBlock(encoded.data(), digest.data(), static_cast<int>(digest.size()));
  return std::string(reinterpret_cast<const char*>(encoded.data()));
}

}  // namespace penstock::http
