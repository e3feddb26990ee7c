// DiskIndex: where each block of the disk tier lies, in at most 40 bytes a block.
//
// Open addressing in 1024 shards by key. A slot takes 28 bytes; a shard is filled to 9/10 and then
// grows by an eighth, so a block costs 31 to 35 bytes and growing stalls for one shard only (10,000
// slots at 10 M blocks, some 50 us). Collisions go Robin Hood: a slot is never nearer to its home
// than one it displaced, so a miss ends as soon as nearer slots begin. Deletion shifts back; there
// are no tombstones.
//
// The key's hash (hash_of, 32 bits) alone says where to look. A segment's list of its blocks is
// therefore a list of hashes, 4 bytes each: for_each_with_hash() finds them (disk_log.h).
//
// Invariants: at most one slot per name. Pointers to slots hold until the next insert or erase.
// Units and shapes: see the accessors' ranges. Errors: none; running out of memory ends the
// process. Concurrency: one thread. Source: Celis, "Robin Hood Hashing", 1986.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "domain/kv.h"

namespace penstock::kvcache {

struct DiskPlace {
  std::uint32_t segment = 0;  // < kSegmentsMax
  std::uint32_t unit = 0;     // < 16384: where the record begins
  bool operator==(const DiskPlace&) const = default;
};

class DiskSlot {
 public:
  static constexpr std::uint32_t kSegmentsMax = 1U << 18;  // 16 TiB of 64 MiB segments
  static constexpr std::uint32_t kDepthMax = (1U << 17) - 1;
  static constexpr std::uint32_t kTenantsMax = 1U << 12;
  static constexpr std::uint32_t kHeatMax = 7;
  static constexpr std::uint32_t kMarksMax = 7;

  DiskSlot() = default;
  DiskSlot(const BlockName& block, DiskPlace place, std::uint32_t payload_bytes,
           std::uint32_t header_units)
      : key_(block.key),
        size_(payload_bytes | static_cast<std::uint32_t>(block.group) << 26 |
              (header_units - 1) << 30) {
    ENSURE(payload_bytes > 0 && payload_bytes < (1U << 26) && header_units - 1 < 4);
    set_place(place);
  }

  BlockName name() const { return {key_, static_cast<KvGroup>(size_ >> 26 & 1)}; }
  bool is(const BlockName& block) const {
    return std::memcmp(key_.bytes.data(), block.key.bytes.data(), 16) == 0 &&
           (size_ >> 26 & 1) == static_cast<std::uint32_t>(block.group);
  }
  bool empty() const { return size_ == 0; }
  DiskPlace place() const { return {place_ >> 14, place_ & 0x3FFF}; }
  std::uint32_t bytes() const { return size_ & 0x3FFFFFF; }  // of the payload
  std::uint32_t heat() const { return size_ >> 27 & 7; }     // hits, saturated
  std::uint32_t header_units() const { return (size_ >> 30) + 1; }
  std::uint32_t tenant() const { return use_ & 0xFFF; }  // slot of the tenant
  std::uint32_t mark() const { return use_ >> 12 & 7; }  // 0: none; else class + 1
  std::uint32_t depth() const { return use_ >> 15; }     // saturated

  void set_place(DiskPlace place) {
    ENSURE(place.segment < kSegmentsMax && place.unit < (1U << 14));
    place_ = place.segment << 14 | place.unit;
  }
  void set_heat(std::uint32_t heat) { size_ = (size_ & ~(7U << 27)) | heat << 27; }
  void set_mark(std::uint32_t mark) { use_ = (use_ & ~(7U << 12)) | mark << 12; }
  void set_tenant(std::uint32_t tenant) { use_ = (use_ & ~0xFFFU) | tenant; }
  void set_depth(std::uint32_t depth) {
    use_ = (use_ & 0x7FFF) | (depth < kDepthMax ? depth : kDepthMax) << 15;
  }

 private:
  friend class DiskIndex;
  Hash128 key_;
  std::uint32_t place_ = 0;
  std::uint32_t size_ = 0;
  std::uint32_t use_ = 0;
};
static_assert(sizeof(DiskSlot) == 28);

class DiskIndex {
 public:
  static constexpr std::size_t kShards = 1024;

  static std::uint32_t hash_of(const BlockName& name);

  // Starts to load the slot where find() begins: called some names ahead it hides memory's latency.
  void prefetch(const BlockName& name) const;
  const DiskSlot* find(const BlockName& name) const;
  DiskSlot* find(const BlockName& name);
  // Precondition: its name is not there.
  DiskSlot& insert(const DiskSlot& slot);
  // Makes room for this many blocks in an empty index, so that filling it does not grow it again.
  void reserve(std::size_t blocks);
  // Precondition: `slot` came from find().
  void erase(DiskSlot* slot);

  // Calls visit(DiskSlot&) for every slot whose name has this hash; it must not insert or erase.
  template <typename Visit>
  void for_each_with_hash(std::uint32_t hash, Visit&& visit) {
    Shard& shard = shards_[hash >> kShardShift];
    if (shard.slots.empty()) return;
    for (std::size_t at = home(hash, shard), distance = 0;; at = next(at, shard), ++distance) {
      DiskSlot& slot = shard.slots[at];
      if (slot.empty() || distance_at(at, slot, shard) < distance) return;
      if (hash_of(slot.name()) == hash) visit(slot);
    }
  }
  // Calls visit(const DiskSlot&) for all of a shard; false from it stops and is returned.
  template <typename Visit>
  bool for_each(std::size_t shard, Visit&& visit) const {
    for (const DiskSlot& slot : shards_[shard].slots) {
      if (!slot.empty() && !visit(slot)) return false;
    }
    return true;
  }
  void clear_shard(std::size_t shard);

  std::size_t size() const { return size_; }
  std::size_t memory_bytes() const { return memory_bytes_ + sizeof *this; }

 private:
  static constexpr int kShardShift = 22;
  struct Shard {
    std::vector<DiskSlot> slots;
    std::size_t used = 0;
  };

  static std::size_t home(std::uint32_t hash, const Shard& shard) {
    // The bits below the shard's, spread over the slots in order.
    return (std::uint64_t{hash << (32 - kShardShift)} * shard.slots.size()) >> 32;
  }
  static std::size_t next(std::size_t at, const Shard& shard) {
    return at + 1 == shard.slots.size() ? 0 : at + 1;
  }
  static std::size_t distance_at(std::size_t at, const DiskSlot& slot, const Shard& shard) {
    const std::size_t from = home(hash_of(slot.name()), shard);
    return at >= from ? at - from : at + shard.slots.size() - from;
  }
  static DiskSlot& place_in(Shard& shard, DiskSlot slot);
  void resize(Shard& shard, std::size_t slots);

  std::array<Shard, kShards> shards_;
  std::size_t size_ = 0;
  std::size_t memory_bytes_ = 0;
};

}  // namespace penstock::kvcache
