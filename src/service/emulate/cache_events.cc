#include "service/emulate/cache_events.h"

#include <array>

#include "core/dialects/msgpack_writer.h"

namespace penstock::emulate {
namespace {

using dialects::MsgpackWriter;

void put_hash(MsgpackWriter& out, bool maps, std::uint64_t hash) {
  if (!maps) {
    out.number(hash);
    return;
  }
  std::array<char, 32> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[bytes.size() - 1 - i] = static_cast<char>(hash >> (8 * (i % 8)));
  out.binary({bytes.data(), bytes.size()});
}

void put_hashes(MsgpackWriter& out, bool maps, std::span<const std::uint64_t> hashes) {
  out.array(hashes.size());
  for (const std::uint64_t hash : hashes)
    put_hash(out, maps, hash);
}

}  // namespace

std::optional<std::string> cache_events(const CacheEvents& how, std::span<const TokenId> prompt,
                                        const BlockCache::Used& used) {
  const std::span stored = std::span(used.names).subspan(used.held);
  if (stored.empty() && used.dropped.empty()) return std::nullopt;
  MsgpackWriter out;
  const auto begin = [&](std::string_view type, std::size_t fields) {
    how.maps ? out.map(fields).text("type") : out.array(fields);
    out.text(type);
  };
  const auto field = [&](std::string_view name) -> MsgpackWriter& {
    return how.maps ? out.text(name) : out;
  };
  out.array(3)
      .real(how.unix_seconds)
      .array((stored.empty() ? 0 : 1) + (used.dropped.empty() ? 0 : 1));
  if (!stored.empty()) {
    begin("BlockStored", 9);
    field("block_hashes");
    put_hashes(out, how.maps, stored);
    field("parent_block_hash");
    used.held == 0 ? static_cast<void>(out.nil())
                   : put_hash(out, how.maps, used.names[used.held - 1]);
    const auto tokens = prompt.subspan(used.held * BlockCache::kBlockTokens,
                                       stored.size() * BlockCache::kBlockTokens);
    field("token_ids").array(tokens.size());
    for (const TokenId token : tokens)
      out.number(token);
    field("block_size").number(BlockCache::kBlockTokens);
    field("lora_id").nil();
    field("medium").text("GPU");
    field("lora_name").nil();
    // One for each block; the salt stands in a prompt's first.
    field("extra_keys");
    if (how.salt.empty() || used.held > 0) {
      out.nil();
    } else {
      out.array(stored.size()).array(1).text(how.salt);
      for (std::size_t i = 1; i < stored.size(); ++i)
        out.nil();
    }
  }
  if (!used.dropped.empty()) {
    begin("BlockRemoved", 3);
    field("block_hashes");
    put_hashes(out, how.maps, used.dropped);
    field("medium").text("GPU");
  }
  out.number(how.rank);
  return out.bytes();
}

}  // namespace penstock::emulate
