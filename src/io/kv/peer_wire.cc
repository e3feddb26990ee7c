#include "io/kv/peer_wire.h"

#include <sys/random.h>

#include <cstring>
#include <type_traits>

#include "base/check.h"

namespace penstock::kv::peer {
namespace {

constexpr std::uint32_t kMagic = 0x50'56'4b'50;  // "PKVP"
constexpr std::size_t kCheckedBytes = kHeaderBytes - sizeof(std::uint32_t);

std::unexpected<Error> bad(std::string_view what) {
  return fail(ErrorCode::kDataLoss, "a KV peer sent " + std::string(what));
}

class Writer {
 public:
  template <typename T>
    requires std::is_integral_v<T>
  void number(T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);  // both hosts are little-endian
    out.append(bytes, sizeof value);
  }
  template <std::size_t kBytes>
  void bytes(const std::array<std::uint8_t, kBytes>& value) {
    out.append(reinterpret_cast<const char*>(value.data()), kBytes);
  }
  void name(const BlockName& value) {
    number(static_cast<std::uint8_t>(value.group));
    bytes(value.key.bytes);
  }
  std::string out;
};

// Reads past the end give zeros and make it not sound.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T number() {
    T value{};
    take(&value, sizeof value);
    return value;
  }
  template <std::size_t kBytes>
  void bytes(std::array<std::uint8_t, kBytes>& value) {
    take(value.data(), kBytes);
  }
  BlockName name() {
    BlockName value;
    const auto group = number<std::uint8_t>();
    if (group > static_cast<std::uint8_t>(KvGroup::kWindow)) sound_ = false;
    value.group = static_cast<KvGroup>(group & 1);
    bytes(value.key.bytes);
    return value;
  }
  // A count of items of `bytes` each that make up the rest.
  std::size_t count(std::size_t bytes, std::size_t most) {
    const auto value = number<std::uint32_t>();
    if (value > most || rest_.size() != value * bytes) sound_ = false;
    return sound_ ? value : 0;
  }
  std::string rest() { return std::string(std::exchange(rest_, {})); }
  bool done() const { return sound_ && rest_.empty(); }

 private:
  void take(void* to, std::size_t bytes) {
    if (rest_.size() < bytes) {
      sound_ = false;
      rest_ = {};
      return;
    }
    std::memcpy(to, rest_.data(), bytes);
    rest_.remove_prefix(bytes);
  }
  std::string_view rest_;
  bool sound_ = true;
};

constexpr std::size_t kHoldingBytes = 1 + 16 + 4;
constexpr std::size_t kWantedBytes = 1 + 16 + 16 + 4;
constexpr std::size_t kSliceBytes = 4 + 8;

}  // namespace

std::string frame(Header header, std::string_view body) {
  ENSURE(body.size() <= kBodyBytesMax);
  Writer writer;
  writer.out.reserve(kHeaderBytes + body.size());
  writer.number(kMagic);
  writer.number(kVersion);
  writer.number(static_cast<std::uint8_t>(header.op));
  writer.number(std::uint16_t{0});
  writer.number(header.request);
  writer.number(header.epoch);
  writer.number(static_cast<std::uint32_t>(body.size()));
  writer.number(static_cast<std::uint32_t>(checksum64(std::string_view(writer.out))));
  writer.out += body;
  return std::move(writer.out);
}

Result<Header> decode_header(std::string_view bytes) {
  ENSURE(bytes.size() == kHeaderBytes);
  Reader reader(bytes);
  if (reader.number<std::uint32_t>() != kMagic) return bad("something else than this protocol");
  const auto version = reader.number<std::uint8_t>();
  if (version != kVersion) {
    return bad("protocol version " + std::to_string(version) + ", not " + std::to_string(kVersion) +
               "; use the same build on both hosts");
  }
  Header header;
  const auto op = reader.number<std::uint8_t>();
  const auto reserved = reader.number<std::uint16_t>();
  header.op = static_cast<Op>(op);
  header.request = reader.number<std::uint64_t>();
  header.epoch = reader.number<std::uint64_t>();
  header.length = reader.number<std::uint32_t>();
  const auto check = static_cast<std::uint32_t>(checksum64(bytes.substr(0, kCheckedBytes)));
  if (reader.number<std::uint32_t>() != check) return bad("a damaged header");
  if (op < 1 || op > static_cast<std::uint8_t>(Op::kDamaged) || reserved != 0 ||
      header.length > kBodyBytesMax)
    return bad("a header out of range");
  return header;
}

std::string hello_body(const Hello& hello) {
  Writer writer;
  writer.bytes(hello.nonce);
  writer.out += std::string_view(hello.name).substr(0, kNameBytesMax);
  return std::move(writer.out);
}

Result<Hello> decode_hello(std::string_view body) {
  Reader reader(body);
  Hello hello;
  reader.bytes(hello.nonce);
  hello.name = reader.rest();
  if (!reader.done() || hello.name.size() > kNameBytesMax) return bad("a bad hello");
  return hello;
}

std::string challenge_body(const Challenge& challenge) {
  Writer writer;
  writer.bytes(challenge.nonce);
  writer.bytes(challenge.proof.bytes);
  return std::move(writer.out);
}

Result<Challenge> decode_challenge(std::string_view body) {
  Reader reader(body);
  Challenge challenge;
  reader.bytes(challenge.nonce);
  reader.bytes(challenge.proof.bytes);
  if (!reader.done()) return bad("a bad challenge");
  return challenge;
}

std::string proof_body(const Hash128& proof) {
  Writer writer;
  writer.bytes(proof.bytes);
  return std::move(writer.out);
}

Result<Hash128> decode_proof(std::string_view body) {
  Reader reader(body);
  Hash128 proof;
  reader.bytes(proof.bytes);
  if (!reader.done()) return bad("a bad proof");
  return proof;
}

std::string holdings_body(const Holdings& holdings) {
  Writer writer;
  writer.number(static_cast<std::uint8_t>(holdings.replaces ? 1 : 0));
  writer.number(static_cast<std::uint32_t>(holdings.blocks.size()));
  for (const Holding& holding : holdings.blocks) {
    writer.name(holding.name);
    writer.number(holding.bytes);
  }
  return std::move(writer.out);
}

Result<Holdings> decode_holdings(std::string_view body) {
  Reader reader(body);
  Holdings holdings;
  const auto replaces = reader.number<std::uint8_t>();
  holdings.replaces = replaces == 1;
  holdings.blocks.resize(reader.count(kHoldingBytes, kBodyBytesMax));
  for (Holding& holding : holdings.blocks) {
    holding.name = reader.name();
    holding.bytes = reader.number<std::uint32_t>();
  }
  if (!reader.done() || replaces > 1) return bad("a bad list of blocks");
  return holdings;
}

std::string read_body(const service::Fetch& fetch) {
  Writer writer;
  writer.bytes(fetch.root.bytes);
  writer.number(fetch.tenant);
  writer.number(static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(fetch.budget).count()));
  writer.number(fetch.ttl_class);
  writer.number(static_cast<std::uint32_t>(fetch.blocks.size()));
  for (const service::FetchBlock& block : fetch.blocks) {
    writer.name(block.name);
    writer.bytes(block.parent.bytes);
    writer.number(block.depth);
  }
  return std::move(writer.out);
}

Result<service::Fetch> decode_read(std::string_view body, std::uint64_t first) {
  Reader reader(body);
  service::Fetch fetch;
  fetch.first = first;
  reader.bytes(fetch.root.bytes);
  fetch.tenant = reader.number<std::uint64_t>();
  fetch.budget = std::chrono::milliseconds(reader.number<std::uint32_t>());
  fetch.ttl_class = reader.number<TtlClass>();
  fetch.blocks.resize(reader.count(kWantedBytes, kReadBlocksMax));
  for (service::FetchBlock& block : fetch.blocks) {
    block.name = reader.name();
    reader.bytes(block.parent.bytes);
    block.depth = reader.number<std::uint32_t>();
  }
  if (!reader.done()) return bad("a bad request for blocks");
  return fetch;
}

std::string block_body(MissReason reason, const BlockInfo& info) {
  Writer writer;
  writer.number(static_cast<std::uint8_t>(reason));
  if (reason != MissReason::kNone) return std::move(writer.out);
  writer.name(info.name);
  writer.bytes(info.parent.bytes);
  writer.bytes(info.root.bytes);
  writer.number(info.depth);
  writer.number(info.tenant);
  writer.number(info.ttl_class);
  writer.number(static_cast<std::uint32_t>(info.slices.size()));
  for (const SliceSum& slice : info.slices) {
    writer.number(slice.bytes);
    writer.number(slice.checksum);
  }
  return std::move(writer.out);
}

Result<Block> decode_block(std::string_view body) {
  Reader reader(body);
  Block block;
  const auto reason = reader.number<std::uint8_t>();
  if (reason >= kMissReasons) return bad("an unknown reason");
  block.reason = static_cast<MissReason>(reason);
  if (block.reason == MissReason::kNone) {
    block.info.name = reader.name();
    reader.bytes(block.info.parent.bytes);
    reader.bytes(block.info.root.bytes);
    block.info.depth = reader.number<std::uint32_t>();
    block.info.tenant = reader.number<std::uint64_t>();
    block.info.ttl_class = reader.number<TtlClass>();
    block.info.slices.resize(reader.count(kSliceBytes, kSlicesMax));
    for (SliceSum& slice : block.info.slices) {
      slice.bytes = reader.number<std::uint32_t>();
      slice.checksum = reader.number<std::uint64_t>();
    }
    if (block.info.bytes() == 0 || block.info.bytes() > UINT32_MAX) return bad("an empty block");
  }
  if (!reader.done()) return bad("a bad block");
  return block;
}

std::string damaged_body(const BlockName& name) {
  Writer writer;
  writer.name(name);
  return std::move(writer.out);
}

Result<BlockName> decode_damaged(std::string_view body) {
  Reader reader(body);
  const BlockName name = reader.name();
  if (!reader.done()) return bad("a bad report");
  return name;
}

Hash128 PeerProofs::prove(std::string_view who, const Nonce& client, const Nonce& server,
                          std::uint64_t epoch) {
  Writer writer;
  writer.number(epoch);
  hasher_.begin();
  hasher_.add_field("penstock kv peer");
  hasher_.add_field(who);
  hasher_.add(client);
  hasher_.add(server);
  hasher_.add_field(writer.out);
  return hasher_.finish();
}

Hash128 PeerProofs::of_server(const Nonce& client, const Nonce& server, std::uint64_t epoch) {
  return prove("server", client, server, epoch);
}

Hash128 PeerProofs::of_client(const Nonce& client, const Nonce& server, std::uint64_t epoch) {
  return prove("client", client, server, epoch);
}

bool same_proof(const Hash128& a, const Hash128& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.bytes.size(); ++i)
    difference |= static_cast<unsigned>(a.bytes[i] ^ b.bytes[i]);
  return difference == 0;
}

Nonce random_nonce() {
  Nonce nonce;
  ENSURE(::getrandom(nonce.data(), nonce.size(), 0) == static_cast<ssize_t>(nonce.size()));
  return nonce;
}

}  // namespace penstock::kv::peer
