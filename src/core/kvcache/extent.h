// Extents: consecutive blocks of one chain and group as one object of a cluster store.
//
// Extent e of a chain holds its blocks [E*e, E*(e+1)); E is a function of the layout's block size,
// so every host has the same. Its name is the key of its last block, its group and the number of
// its blocks. What does not fill an extent (tails, window state) is stored as extents of one block.
// The bytes are a function of the blocks alone (no tenant, class or time), so two writers of one
// name write the same.
//
//   0 magic "PKSX" · 4 version u16 · 6 group u8 · 7 zero u8 · 8 blocks u16 · 10 slices u16
//   12 first depth u32 · 16 root 16 B · 32 parent of the first block 16 B · 48 header bytes u32
//   52 block bytes u32 · 56 bytes of each slice u32... · per block: key 16 B, checksum of each
//   slice u64... · zeros to the next 8 bytes · checksum of all before u64 · the blocks' bytes
//
// Invariants: what parses is whole: its sizes agree with the object's; blocks are at the places the
// header says. A block's bytes are checked against its slices' checksums by who copies them.
// Units and shapes: little-endian. Errors: parse_extent() says which fault. Concurrency: pure.
// Source: design.md section 6; docs/design/0013-cluster-tier.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <vector>

#include "core/kvcache/segment_format.h"
#include "domain/kv.h"

namespace penstock::kvcache {

inline constexpr std::uint16_t kExtentVersion = 1;
inline constexpr std::uint32_t kExtentBlocksMin = 16;
inline constexpr std::uint32_t kExtentBlocksMax = 64;
inline constexpr std::uint64_t kExtentBytesWanted = std::uint64_t{2} << 20;

// E for blocks of so many bytes: the largest of 64, 32 and 16 with at most 2 MiB; 16 at least.
std::uint32_t extent_blocks(std::uint64_t block_bytes);

// "0123456789abcdef0123456789abcdef.h64": key of the last block, group (h, w), blocks.
std::string extent_name(const BlockName& last, std::uint32_t blocks);

struct Extent {
  std::vector<BlockInfo> blocks;  // ascending; ttl_class and tenant are 0
  std::size_t header_bytes = 0;
  std::size_t block_bytes = 0;
  std::size_t bytes() const { return header_bytes + blocks.size() * block_bytes; }
  std::size_t offset(std::size_t block) const { return header_bytes + block * block_bytes; }
};

// Bytes of the object that such blocks make; 0: they can't be one (their number, sizes, chain).
std::size_t extent_bytes(std::span<const BlockInfo> blocks);
// Bytes of the object of `blocks` blocks of a layout.
std::size_t extent_bytes(const KvLayoutSpec& layout, KvGroup group, std::size_t blocks);
// Writes the header; the payloads follow it in order. Precondition: extent_bytes(blocks) > 0, and
// `out` has at least as many.
std::size_t write_extent_header(std::span<const BlockInfo> blocks, std::span<std::byte> out);

// `object`: all of its bytes.
std::expected<Extent, FormatFault> parse_extent(std::span<const std::byte> object);

}  // namespace penstock::kvcache
