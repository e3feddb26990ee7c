#include "core/kvcache/extent.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "core/kvcache/fields.h"

namespace penstock::kvcache {
namespace {

constexpr std::uint32_t kMagic = 0x58534B50;  // "PKSX"
constexpr std::size_t kFixedBytes = 56;

std::size_t header_bytes_of(std::size_t blocks, std::size_t slices) {
  const std::size_t fields = kFixedBytes + 4 * slices + blocks * (16 + 8 * slices);
  return (fields + 7) / 8 * 8 + 8;
}

bool follows(const BlockInfo& block, const BlockInfo& before) {
  const bool same_slices =
      std::ranges::equal(block.slices, before.slices,
                         [](const SliceSum& a, const SliceSum& b) { return a.bytes == b.bytes; });
  return same_slices && block.name.group == before.name.group && block.root == before.root &&
         block.depth == before.depth + 1 && block.parent == before.name.key;
}

}  // namespace

std::uint32_t extent_blocks(std::uint64_t block_bytes) {
  std::uint32_t blocks = kExtentBlocksMax;
  while (blocks > kExtentBlocksMin && blocks * block_bytes > kExtentBytesWanted)
    blocks /= 2;
  return blocks;
}

std::string extent_name(const BlockName& last, std::uint32_t blocks) {
  std::string name;
  for (const std::uint8_t byte : last.key.bytes)
    fmt::format_to(std::back_inserter(name), "{:02x}", byte);
  return fmt::format("{}.{}{}", name, last.group == KvGroup::kHistory ? 'h' : 'w', blocks);
}

std::size_t extent_bytes(std::span<const BlockInfo> blocks) {
  if (blocks.empty() || blocks.size() > kExtentBlocksMax) return 0;
  const BlockInfo& first = blocks[0];
  const std::uint64_t bytes = first.bytes();
  if (first.slices.empty() || first.slices.size() > kSlicesMax || bytes == 0) return 0;
  if (bytes > kPayloadBytesMax) return 0;
  for (std::size_t i = 1; i < blocks.size(); ++i)
    if (!follows(blocks[i], blocks[i - 1])) return 0;
  return header_bytes_of(blocks.size(), first.slices.size()) + blocks.size() * bytes;
}

std::size_t extent_bytes(const KvLayoutSpec& layout, KvGroup group, std::size_t blocks) {
  return header_bytes_of(blocks, layout.slices(group).size()) + blocks * layout.bytes(group);
}

std::size_t write_extent_header(std::span<const BlockInfo> blocks, std::span<std::byte> out) {
  ENSURE(extent_bytes(blocks) > 0);
  const BlockInfo& first = blocks[0];
  const std::size_t slices = first.slices.size();
  const std::size_t bytes = header_bytes_of(blocks.size(), slices);
  out = out.first(bytes);
  std::ranges::fill(out, std::byte{0});
  put(out, 0, kMagic);
  put(out, 4, kExtentVersion);
  put(out, 6, static_cast<std::uint8_t>(first.name.group));
  put(out, 8, static_cast<std::uint16_t>(blocks.size()));
  put(out, 10, static_cast<std::uint16_t>(slices));
  put(out, 12, first.depth);
  put(out, 16, first.root);
  put(out, 32, first.parent);
  put(out, 48, static_cast<std::uint32_t>(bytes));
  put(out, 52, static_cast<std::uint32_t>(first.bytes()));
  std::size_t at = kFixedBytes;
  for (const SliceSum& slice : first.slices) {
    put(out, at, slice.bytes);
    at += 4;
  }
  for (const BlockInfo& block : blocks) {
    put(out, at, block.name.key);
    at += 16;
    for (const SliceSum& slice : block.slices) {
      put(out, at, slice.checksum);
      at += 8;
    }
  }
  put(out, bytes - 8, checksum64(out.first(bytes - 8)));
  return bytes;
}

std::expected<Extent, FormatFault> parse_extent(std::span<const std::byte> object) {
  const auto fault = [](FormatFault f) { return std::unexpected(f); };
  if (object.size() < kFixedBytes) return fault(FormatFault::kShort);
  if (get<std::uint32_t>(object, 0) != kMagic) return fault(FormatFault::kForeign);
  if (get<std::uint16_t>(object, 4) != kExtentVersion) return fault(FormatFault::kOtherVersion);
  const auto group = get<std::uint8_t>(object, 6);
  const std::size_t count = get<std::uint16_t>(object, 8);
  const std::size_t slices = get<std::uint16_t>(object, 10);
  const bool is_sane = group <= 1 && count > 0 && count <= kExtentBlocksMax && slices > 0 &&
                       slices <= kSlicesMax &&
                       get<std::uint32_t>(object, 48) == header_bytes_of(count, slices);
  if (!is_sane) return fault(FormatFault::kCorrupt);
  Extent extent;
  extent.header_bytes = header_bytes_of(count, slices);
  extent.block_bytes = get<std::uint32_t>(object, 52);
  if (object.size() < extent.header_bytes) return fault(FormatFault::kShort);
  const auto header = object.first(extent.header_bytes);
  if (get<std::uint64_t>(header, header.size() - 8) != checksum64(header.first(header.size() - 8)))
    return fault(FormatFault::kCorrupt);
  BlockInfo block;
  block.name.group = static_cast<KvGroup>(group);
  block.depth = get<std::uint32_t>(header, 12);
  block.root = get<BlockKey>(header, 16);
  block.parent = get<BlockKey>(header, 32);
  std::size_t at = kFixedBytes;
  for (std::size_t i = 0; i < slices; ++i, at += 4)
    block.slices.push_back({get<std::uint32_t>(header, at), 0});
  if (block.bytes() != extent.block_bytes || extent.block_bytes == 0)
    return fault(FormatFault::kCorrupt);
  for (std::size_t i = 0; i < count; ++i) {
    block.name.key = get<BlockKey>(header, at);
    at += 16;
    for (SliceSum& slice : block.slices) {
      slice.checksum = get<std::uint64_t>(header, at);
      at += 8;
    }
    extent.blocks.push_back(block);
    ++block.depth;
    block.parent = block.name.key;
  }
  if (object.size() < extent.bytes()) return fault(FormatFault::kShort);
  if (object.size() != extent.bytes()) return fault(FormatFault::kCorrupt);
  return extent;
}

}  // namespace penstock::kvcache
