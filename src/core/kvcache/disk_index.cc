#include "core/kvcache/disk_index.h"

#include <utility>

namespace penstock::kvcache {

std::uint32_t DiskIndex::hash_of(const BlockName& name) {
  std::uint64_t word = 0;
  std::memcpy(&word, name.key.bytes.data(), sizeof word);
  // Keys are uniform already; the multiplication sets the two groups of one key apart.
  word = (word + static_cast<std::uint64_t>(name.group)) * 0x9E3779B97F4A7C15U;
  return static_cast<std::uint32_t>(word >> 32);
}

void DiskIndex::prefetch(const BlockName& name) const {
  const std::uint32_t hash = hash_of(name);
  const Shard& shard = shards_[hash >> kShardShift];
  if (!shard.slots.empty()) __builtin_prefetch(&shard.slots[home(hash, shard)], 1);
}

const DiskSlot* DiskIndex::find(const BlockName& name) const {
  const std::uint32_t hash = hash_of(name);
  const Shard& shard = shards_[hash >> kShardShift];
  if (shard.slots.empty()) return nullptr;
  for (std::size_t at = home(hash, shard), distance = 0;; at = next(at, shard), ++distance) {
    const DiskSlot& slot = shard.slots[at];
    if (slot.empty() || distance_at(at, slot, shard) < distance) return nullptr;
    if (slot.is(name)) return &slot;
  }
}

DiskSlot* DiskIndex::find(const BlockName& name) {
  return const_cast<DiskSlot*>(std::as_const(*this).find(name));
}

DiskSlot& DiskIndex::insert(const DiskSlot& slot) {
  Shard& shard = shards_[hash_of(slot.name()) >> kShardShift];
  const std::size_t slots = shard.slots.size();
  // Small tables, whose memory does not matter, grow faster.
  if ((shard.used + 1) * 10 > slots * 9) resize(shard, slots + slots / (slots < 256 ? 1 : 8) + 8);
  ++shard.used;
  ++size_;
  return place_in(shard, slot);
}

DiskSlot& DiskIndex::place_in(Shard& shard, DiskSlot slot) {
  DiskSlot* placed = nullptr;
  std::size_t at = home(hash_of(slot.name()), shard);
  for (std::size_t distance = 0;; at = next(at, shard), ++distance) {
    DiskSlot& here = shard.slots[at];
    if (here.empty()) {
      here = slot;
      return placed != nullptr ? *placed : here;
    }
    const std::size_t its = distance_at(at, here, shard);
    if (its < distance) {
      std::swap(here, slot);
      if (placed == nullptr) placed = &here;
      distance = its;
    }
  }
}

void DiskIndex::erase(DiskSlot* slot) {
  Shard& shard = shards_[hash_of(slot->name()) >> kShardShift];
  auto at = static_cast<std::size_t>(slot - shard.slots.data());
  ENSURE(at < shard.slots.size() && !slot->empty());
  for (std::size_t after = next(at, shard);; at = after, after = next(after, shard)) {
    const DiskSlot& follower = shard.slots[after];
    if (follower.empty() || distance_at(after, follower, shard) == 0) break;
    shard.slots[at] = follower;
  }
  shard.slots[at] = DiskSlot();
  --shard.used;
  --size_;
}

void DiskIndex::clear_shard(std::size_t number) {
  Shard& shard = shards_[number];
  size_ -= shard.used;
  memory_bytes_ -= shard.slots.capacity() * sizeof(DiskSlot);
  shard = Shard();
}

void DiskIndex::reserve(std::size_t blocks) {
  ENSURE(size_ == 0);
  // Shards differ by chance; an eighth more than the mean leaves few that grow.
  const std::size_t mean = blocks / kShards;
  for (Shard& shard : shards_)
    resize(shard, mean + mean / 8 + 8);
}

void DiskIndex::resize(Shard& shard, std::size_t slots) {
  std::vector<DiskSlot> old(slots);
  old.swap(shard.slots);
  memory_bytes_ += (shard.slots.capacity() - old.capacity()) * sizeof(DiskSlot);
  for (const DiskSlot& slot : old) {
    if (!slot.empty()) place_in(shard, slot);
  }
}

}  // namespace penstock::kvcache
