#include "core/kvcache/extent.h"

#include <cstring>

#include "base/hash.h"
#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock::kvcache {
namespace {

std::vector<BlockInfo> chain(std::uint32_t first, std::uint32_t count,
                             KvGroup group = KvGroup::kHistory) {
  std::vector<BlockInfo> blocks;
  const auto key = [](std::uint32_t depth) {
    BlockKey k;
    k.bytes.fill(static_cast<std::uint8_t>(depth + 1));
    return k;
  };
  for (std::uint32_t depth = first; depth < first + count; ++depth) {
    BlockInfo info;
    info.name = {key(depth), group};
    info.root.bytes.fill(0xEE);
    info.parent = depth == 0 ? info.root : key(depth - 1);
    info.depth = depth;
    info.slices = {{300, depth * 7}, {41, depth * 11 + 1}};
    blocks.push_back(info);
  }
  return blocks;
}

std::vector<std::byte> object_of(const std::vector<BlockInfo>& blocks) {
  std::vector<std::byte> object(extent_bytes(blocks), std::byte{0x5A});
  write_extent_header(blocks, object);
  return object;
}

}  // namespace

TEST_CASE("an extent has 16 to 64 blocks, so that it is 1 to 2 MiB where that is possible") {
  CHECK(extent_blocks(1) == 64);
  CHECK(extent_blocks(32 << 10) == 64);
  CHECK(extent_blocks((32 << 10) + 1) == 32);
  CHECK(extent_blocks(64 << 10) == 32);
  CHECK(extent_blocks((64 << 10) + 1) == 16);
  CHECK(extent_blocks(std::uint64_t{4} << 20) == 16);
}

TEST_CASE("names tell the last block, the group and the number of blocks") {
  const auto blocks = chain(0, 2);
  CHECK(extent_name(blocks[1].name, 64) == "02020202020202020202020202020202.h64");
  CHECK(extent_name({blocks[0].name.key, KvGroup::kWindow}, 1) ==
        "01010101010101010101010101010101.w1");
}

TEST_CASE("what is written parses to the same blocks, at their places") {
  for (const std::uint32_t count : {1U, 2U, 16U, 64U}) {
    const auto blocks = chain(32, count);
    const auto object = object_of(blocks);
    const auto extent = parse_extent(object);
    REQUIRE(extent);
    REQUIRE(extent->blocks.size() == count);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(extent->blocks[i].name == blocks[i].name);
      CHECK(extent->blocks[i].parent == blocks[i].parent);
      CHECK(extent->blocks[i].root == blocks[i].root);
      CHECK(extent->blocks[i].depth == blocks[i].depth);
      CHECK(extent->blocks[i].slices == blocks[i].slices);
      CHECK(extent->offset(i) == extent->header_bytes + i * 341);
    }
    CHECK(extent->bytes() == object.size());
    CHECK(extent_bytes({64, {300, 41}, {}, 0}, KvGroup::kHistory, count) == object.size());
  }
}

TEST_CASE("tenant and class are not in it: two writers write the same bytes") {
  auto blocks = chain(0, 3);
  const auto object = object_of(blocks);
  for (BlockInfo& block : blocks) {
    block.tenant = 9;
    block.ttl_class = 2;
  }
  CHECK(object_of(blocks) == object);
}

TEST_CASE("what is no run of one chain makes no extent") {
  CHECK(extent_bytes(std::vector<BlockInfo>{}) == 0);
  CHECK(extent_bytes(chain(0, kExtentBlocksMax + 1)) == 0);
  const std::vector<void (*)(BlockInfo&)> faults{[](BlockInfo& b) { b.depth = 9; },
                                                 [](BlockInfo& b) { b.parent = b.name.key; },
                                                 [](BlockInfo& b) { b.root = b.name.key; },
                                                 [](BlockInfo& b) { b.slices.pop_back(); },
                                                 [](BlockInfo& b) { b.slices[0].bytes = 1; },
                                                 [](BlockInfo& b) { b.name.group = KvGroup::kWindow; }};
  for (const auto fault : faults) {
    auto blocks = chain(4, 3);
    fault(blocks[1]);
    CHECK(extent_bytes(blocks) == 0);
  }
  auto empty = chain(0, 1);
  empty[0].slices.clear();
  CHECK(extent_bytes(empty) == 0);
}

TEST_CASE("every damaged bit of the header and every other length is found") {
  const auto object = object_of(chain(16, 4));
  const std::size_t header = parse_extent(object)->header_bytes;
  for (std::size_t bit = 0; bit < header * 8; ++bit) {
    auto damaged = object;
    damaged[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    CHECK(!parse_extent(damaged));
  }
  for (std::size_t bytes = 0; bytes < object.size(); ++bytes)
    CHECK(!parse_extent(std::span(object).first(bytes)));
  auto longer = object;
  longer.push_back(std::byte{0});
  CHECK(parse_extent(longer).error() == FormatFault::kCorrupt);
  CHECK(parse_extent({}).error() == FormatFault::kShort);
  CHECK(parse_extent(std::vector<std::byte>(4096)).error() == FormatFault::kForeign);
}

}  // namespace penstock::kvcache
