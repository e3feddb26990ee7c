// The messages of a handoff and their bytes (docs/protocol/handoff.md has the tables).
//
// A message is one byte of kind and the fields of its struct in order, little-endian; a text is its
// length (u16) and its bytes. The transport keeps messages whole and in order, so there is no
// length and no check of the whole. `pull` is the reader's number for the exchange: a process may
// hold a handoff twice, and old messages must not be taken for new ones.
//
// Invariants: decode(encode(m)) == m for every message within the limits; decode() takes exactly
// the bytes that encode() makes: nothing may follow, no field may be out of range.
// Errors: decode() gives kDataLoss. Concurrency: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "core/handoff/reason.h"
#include "domain/engine.h"
#include "domain/handoff.h"

namespace penstock {
// The same as port/transport.h's: core knows no ports.
using PeerId = Id<struct PeerTag>;
}  // namespace penstock

namespace penstock::handoff {

inline constexpr std::uint16_t kProtocolVersion = 1;
inline constexpr std::size_t kTextMax = 1024;          // bytes of a text; longer ones are cut
inline constexpr std::uint32_t kLayersMax = 4096;      // of a model
inline constexpr std::uint32_t kPartBlocksMax = 4096;  // of one message
inline constexpr std::size_t kMessageMax = 256 << 10;  // bytes
inline constexpr std::size_t kOutputTokensMax = 64;    // of a first output
inline constexpr std::size_t kTopMax = 256;            // alternatives of a token

// How KV lies in a pool: a block is [layers] slices of [block_tokens] rows.
struct Layout {
  std::uint32_t layers = 0;
  std::uint32_t block_tokens = 0;
  std::uint64_t slice_bytes = 0;
  std::string format;

  std::uint64_t row_bytes() const { return slice_bytes / block_tokens; }
  // Layers and rows exist, and a slice is whole rows.
  bool sound() const;
  bool operator==(const Layout&) const = default;
};
std::string to_string(const Layout& layout);

// Reader to owner.
struct Attach {
  std::uint16_t version = kProtocolVersion;
  HandoffId id;
  std::uint64_t pull = 0;
  Epoch epoch;                 // of the owner, as the reader was told
  std::uint32_t received = 0;  // tickets it has already, from before a lost connection
  std::uint32_t tokens = 0;    // that it wants
  std::string model;
  Layout layout;
  bool operator==(const Attach&) const = default;
};
struct Renew {
  HandoffId id;
  std::uint64_t pull = 0;
  std::uint32_t sequence = 0;
  bool operator==(const Renew&) const = default;
};
// So many tickets are here: the owner may send more.
struct Ack {
  HandoffId id;
  std::uint64_t pull = 0;
  std::uint32_t received = 0;
  bool operator==(const Ack&) const = default;
};
// The reader reads no more.
struct Release {
  HandoffId id;
  std::uint64_t pull = 0;
  Reason reason = Reason::kDone;
  bool operator==(const Release&) const = default;
};

// Owner to reader.
struct Attached {
  std::uint64_t pull = 0;
  std::uint32_t pool = 0;  // the transport's number of it
  Duration lease{};
  bool operator==(const Attached&) const = default;
};
struct Renewed {
  std::uint64_t pull = 0;
  std::uint32_t sequence = 0;  // of the Renew
  Duration lease{};
  bool operator==(const Renewed&) const = default;
};
struct Part {
  std::uint64_t pull = 0;
  std::uint32_t first = 0;   // block of the sequence
  std::uint32_t tokens = 0;  // that the blocks up to the last of this part hold
  std::uint32_t layers = 0;  // checksums of each block
  std::vector<TicketBlock> blocks;
  bool operator==(const Part&) const = default;
};
// Everything was sent.
struct Closed {
  std::uint64_t pull = 0;
  std::uint32_t tokens = 0;
  std::optional<EngineOutput> output;
};
bool operator==(const Closed& a, const Closed& b);
// Refused, or over.
struct Ended {
  std::uint64_t pull = 0;
  Reason reason = Reason::kUnknown;
  std::string why;
  bool operator==(const Ended&) const = default;
};
// The owner lives. Says nothing about the engine behind it.
struct Alive {
  bool operator==(const Alive&) const = default;
};

using Message =
    std::variant<Attach, Renew, Ack, Release, Attached, Renewed, Part, Closed, Ended, Alive>;

// Bytes of a part's block, for the sender to cut parts by.
std::size_t part_block_bytes(std::uint32_t layers);
// Whether a Closed can carry it.
bool fits(const EngineOutput& output);
// Precondition: parts and outputs are within the limits above.
std::string encode(const Message& message);
Result<Message> decode(std::string_view bytes);

}  // namespace penstock::handoff
