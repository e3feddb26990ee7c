// What the KV daemons of two hosts say to each other over TCP, as bytes: pure conversions.
//
// Every frame is a header of kHeaderBytes and a body; the answer to a read is followed by the
// block's payload. Decoding takes what a peer sent: each body has exactly the bytes that its counts
// say, and values in range.
//
// Invariants: decode(encode(x)) equals x. Units and shapes: little-endian.
// Errors: kDataLoss for bytes that are no frame; the message says what is wrong.
// Concurrency: pure, but PeerProofs is one thread's. Source: docs/protocol/kv-peers.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "domain/kv.h"
#include "service/kvd/fetch.h"

namespace penstock::kv::peer {

inline constexpr std::uint8_t kVersion = 2;
inline constexpr std::size_t kHeaderBytes = 32;
inline constexpr std::size_t kBodyBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kReadBlocksMax = 256;  // of one frame
inline constexpr std::size_t kNameBytesMax = 256;
inline constexpr std::size_t kSlicesMax = 4096;

enum class Op : std::uint8_t {
  kHello = 1,  // client: its nonce and name
  kChallenge,  // server: its nonce and proof
  kProof,      // client: its proof
  kWelcome,    // server: go on
  kSubscribe,  // client: tell me what you hold
  kHoldings,   // server: what it holds, and changes
  kRead,       // client: blocks, please
  kBlock,      // server: one of them, or why not
  kGoodbye,    // server: the end, and why
  kDamaged,    // client: your copy of this block came with wrong bytes
};

struct Header {
  Op op = Op::kHello;
  std::uint64_t request = 0;  // number of the first block (kRead), of the block (kBlock)
  std::uint64_t epoch = 0;    // the server's run; 0 while the client does not know it
  std::uint32_t length = 0;   // of the body
  bool operator==(const Header&) const = default;
};

using Nonce = std::array<std::uint8_t, 16>;

struct Hello {
  Nonce nonce{};
  std::string name;
  bool operator==(const Hello&) const = default;
};
struct Challenge {
  Nonce nonce{};
  Hash128 proof;
  bool operator==(const Challenge&) const = default;
};

// A name and whether it is held by now.
struct Holding {
  BlockName name;
  std::uint32_t bytes = 0;  // 0: not held
  bool operator==(const Holding&) const = default;
};
struct Holdings {
  bool replaces = false;  // everything known before
  std::vector<Holding> blocks;
  bool operator==(const Holdings&) const = default;
};

struct Block {
  MissReason reason = MissReason::kNone;
  BlockInfo info;  // with kNone; its payload follows
};

// Whole frames. `length` of the header is set here.
std::string frame(Header header, std::string_view body);
std::string hello_body(const Hello& hello);
std::string challenge_body(const Challenge& challenge);
std::string proof_body(const Hash128& proof);
std::string holdings_body(const Holdings& holdings);
std::string read_body(const service::Fetch& fetch);
std::string block_body(MissReason reason, const BlockInfo& info);
std::string damaged_body(const BlockName& name);

// Precondition: kHeaderBytes bytes.
Result<Header> decode_header(std::string_view bytes);
Result<Hello> decode_hello(std::string_view body);
Result<Challenge> decode_challenge(std::string_view body);
Result<Hash128> decode_proof(std::string_view body);
Result<Holdings> decode_holdings(std::string_view body);
// `first` is the header's request.
Result<service::Fetch> decode_read(std::string_view body, std::uint64_t first);
Result<Block> decode_block(std::string_view body);
Result<BlockName> decode_damaged(std::string_view body);

// Proves knowledge of the deployment secret for one pair of nonces, each side in its own words.
class PeerProofs {
 public:
  explicit PeerProofs(std::span<const std::uint8_t, 32> secret) : hasher_(secret) {}
  Hash128 of_server(const Nonce& client, const Nonce& server, std::uint64_t epoch);
  Hash128 of_client(const Nonce& client, const Nonce& server, std::uint64_t epoch);

 private:
  Hash128 prove(std::string_view who, const Nonce& client, const Nonce& server,
                std::uint64_t epoch);
  KeyedHasher hasher_;
};
// In a time that does not depend on where they differ.
bool same_proof(const Hash128& a, const Hash128& b);

Nonce random_nonce();

}  // namespace penstock::kv::peer
