// What two transports say to each other, as bytes: pure conversions.
//
// Every frame is a head of kHeadBytes and a body. Over TCP, the body of kBytes is followed by the
// slice's bytes. Decoding takes what a peer sent: a body has exactly the bytes of its kind, and
// values in range.
//
// Invariants: decode(encode(x)) equals x. Units and shapes: little-endian. Errors: kDataLoss; the
// message says what is wrong. Concurrency: pure. Source: docs/design/0006-transport.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "port/transport.h"

namespace penstock::transport {

inline constexpr std::size_t kHeadBytes = 8;
inline constexpr std::size_t kMessageBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kReasonBytesMax = 512;
inline constexpr std::size_t kDetailsBytesMax = 64 << 10;
inline constexpr std::uint8_t kStreamsMax = 4;

enum class Kind : std::uint8_t {
  kHello = 1,  // who connects, first
  kWelcome,    // the answer
  kJoin,       // first on each further connection of tcp
  kMessage,
  kPing,
  kPool,     // shm: a pool, with its descriptor
  kGoodbye,  // why the connection ends now
  kRead,     // to the owner: bytes, please
  kCancel,   // to the owner: not any more
  kBytes,    // from the owner: here they are
  kVerdict,  // from the owner: how that read ended
};
inline constexpr auto kKindLast = Kind::kVerdict;

enum class Driver : std::uint8_t { kShm = 1, kTcp, kUcx };

struct Head {
  std::uint32_t length = 0;  // of the body
  Kind kind = Kind::kPing;
  bool operator==(const Head&) const = default;
};

using Token = std::array<std::uint8_t, 16>;  // names one connection; drawn at random

struct Hello {
  Driver driver = Driver::kShm;
  std::uint8_t streams = 0;  // tcp: further connections wanted
  std::string details;       // ucx: the worker's address
  bool operator==(const Hello&) const = default;
};
struct Welcome {
  Driver driver = Driver::kShm;
  std::uint8_t streams = 0;  // tcp: further connections to make
  Token token{};             // tcp: what they present; ucx: what comes with bytes
  std::string details;
  bool operator==(const Welcome&) const = default;
};
struct Join {
  Token token{};
  bool operator==(const Join&) const = default;
};
struct PoolNotice {
  std::uint32_t number = 0;
  std::uint32_t blocks = 0;
  std::uint64_t bytes = 0;
  std::uint64_t payload_offset = 0;
  std::uint64_t block_bytes = 0;
  bool operator==(const PoolNotice&) const = default;
};
struct ReadRequest {
  std::uint64_t id = 0;  // not 0
  RemoteSlice slice;     // without its checksum
};
struct BytesHead {
  std::uint64_t id = 0;
  std::uint32_t length = 0;
  bool operator==(const BytesHead&) const = default;
};
struct Verdict {
  std::uint64_t id = 0;
  ReadEnd end = ReadEnd::kDone;  // kDone, kStale or kRefused
  bool operator==(const Verdict&) const = default;
};

// Whole frames.
std::string frame(Kind kind, std::string_view body);
std::string encode(const Hello& hello);
std::string encode(const Welcome& welcome);
std::string encode(const Join& join);
std::string encode(const PoolNotice& notice);
std::string encode(const ReadRequest& request);
std::string encode(const BytesHead& head);
std::string encode(const Verdict& verdict);
std::string encode_cancel(std::uint64_t id);

// The head of a frame; nullopt while there are not enough bytes. Fails for unknown kinds and for
// lengths that their kind can't have.
Result<std::optional<Head>> decode_head(std::string_view bytes);
Result<Hello> decode_hello(std::string_view body);
Result<Welcome> decode_welcome(std::string_view body);
Result<Join> decode_join(std::string_view body);
Result<PoolNotice> decode_pool(std::string_view body);
Result<ReadRequest> decode_read(std::string_view body);
Result<BytesHead> decode_bytes(std::string_view body);
Result<Verdict> decode_verdict(std::string_view body);
Result<std::uint64_t> decode_cancel(std::string_view body);

Token random_token();

}  // namespace penstock::transport
