#include "core/kvcache/disk_index.h"

#include <doctest/doctest.h>
#include <unordered_map>

#include "base/rng.h"

namespace penstock::kvcache {
namespace {

BlockName name_of(std::uint64_t number, KvGroup group = KvGroup::kHistory) {
  BlockName name{{}, group};
  const std::uint64_t words[2] = {number * 0xD6E8FEB86659FD93U + 1, number};
  std::memcpy(name.key.bytes.data(), words, sizeof words);
  return name;
}

TEST_CASE("a slot keeps what it is told") {
  DiskSlot slot(name_of(5, KvGroup::kWindow), {DiskSlot::kSegmentsMax - 1, 16383}, (1U << 26) - 1,
                4);
  slot.set_heat(7);
  slot.set_mark(6);
  slot.set_tenant(4095);
  slot.set_depth(1'000'000);
  CHECK(slot.name() == name_of(5, KvGroup::kWindow));
  CHECK(slot.is(name_of(5, KvGroup::kWindow)));
  CHECK_FALSE(slot.is(name_of(5)));
  CHECK(slot.place() == DiskPlace{DiskSlot::kSegmentsMax - 1, 16383});
  CHECK(slot.bytes() == (1U << 26) - 1);
  CHECK(slot.header_units() == 4);
  CHECK(slot.heat() == 7);
  CHECK(slot.mark() == 6);
  CHECK(slot.tenant() == 4095);
  CHECK(slot.depth() == DiskSlot::kDepthMax);
  slot.set_heat(1);
  slot.set_mark(0);
  slot.set_tenant(3);
  slot.set_depth(12);
  CHECK(slot.heat() == 1);
  CHECK(slot.mark() == 0);
  CHECK(slot.tenant() == 3);
  CHECK(slot.depth() == 12);
  CHECK(slot.bytes() == (1U << 26) - 1);
}

// Random inserts, erases and look-ups beside a std::unordered_map, in tables small and crowded
// enough that runs of collisions wrap around.
TEST_CASE("model: a map") {
  for (const std::uint64_t keys : {40U, 3000U, 60'000U}) {
    CAPTURE(keys);
    Rng rng(keys);
    DiskIndex index;
    std::unordered_map<BlockName, std::uint32_t> model;
    for (int step = 0; step < 200'000; ++step) {
      const auto group = rng.below(4) == 0 ? KvGroup::kWindow : KvGroup::kHistory;
      const BlockName name = name_of(rng.below(keys), group);
      DiskSlot* slot = index.find(name);
      const auto known = model.find(name);
      REQUIRE((slot != nullptr) == (known != model.end()));
      if (slot == nullptr) {
        const auto bytes = static_cast<std::uint32_t>(1 + rng.below(1000));
        const DiskSlot& placed = index.insert(DiskSlot(name, {1, 2}, bytes, 1));
        REQUIRE(placed.is(name));
        model[name] = bytes;
      } else {
        REQUIRE(slot->bytes() == known->second);
        if (rng.below(3) > 0) {
          index.erase(slot);
          model.erase(known);
        }
      }
      REQUIRE(index.size() == model.size());
    }
    std::size_t seen = 0;
    for (std::size_t shard = 0; shard < DiskIndex::kShards; ++shard) {
      index.for_each(shard, [&](const DiskSlot& slot) {
        ++seen;
        return model.at(slot.name()) == slot.bytes();
      });
    }
    CHECK(seen == model.size());
    for (const auto& [name, bytes] : model) {
      int found = 0;
      index.for_each_with_hash(DiskIndex::hash_of(name),
                               [&](DiskSlot& slot) { found += slot.is(name) ? 1 : 0; });
      REQUIRE(found == 1);
    }
    for (std::size_t shard = 0; shard < DiskIndex::kShards; ++shard)
      index.clear_shard(shard);
    CHECK(index.size() == 0);
    CHECK(index.memory_bytes() == sizeof index);
  }
}

TEST_CASE("a block costs at most 36 bytes from 1 M blocks on") {
  DiskIndex index;
  const std::uint64_t blocks = 1'000'000;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    index.insert(DiskSlot(name_of(i), {1, 2}, 4096, 1));
    if (i % 100'000 == 99'999 && i >= 400'000) {
      CAPTURE(i);
      REQUIRE(static_cast<double>(index.memory_bytes()) / static_cast<double>(i + 1) <= 36.0);
    }
  }
}

}  // namespace
}  // namespace penstock::kvcache
