#include "core/kvcache/host_tier.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace penstock::kvcache {
namespace {

constexpr std::uint64_t kCorruptShare = 64;  // of the arena, kept out of use
constexpr std::size_t kEvictionsMax = 4096;  // by one make_room()

std::uint64_t units_of(std::uint64_t bytes) {
  return (bytes + kArenaUnit - 1) / kArenaUnit;
}

}  // namespace

HostTier::HostTier(std::uint64_t arena_bytes, double tenant_share_max)
    : space_(arena_bytes / kArenaUnit),
      tenant_units_max_(static_cast<std::uint64_t>(std::clamp(tenant_share_max, 0.0, 1.0) *
                                                   static_cast<double>(space_.units()))) {}

std::optional<BlockName> HostTier::parent_of(const BlockInfo& info) {
  if (info.name.group == KvGroup::kWindow) return BlockName{info.name.key, KvGroup::kHistory};
  if (info.depth == 0) return std::nullopt;
  return BlockName{info.parent, KvGroup::kHistory};
}

std::optional<HostBlock> HostTier::find(const BlockName& name) const {
  ++look_ups_;
  const auto found = index_.find(name);
  if (found == index_.end()) return std::nullopt;
  const HostEntry& entry = nodes_[found->second].entry;
  if (entry.state == HostState::kAbsent) return std::nullopt;
  return HostBlock{found->second, entry.generation};
}

bool HostTier::valid(HostBlock block) const {
  return block.slot < nodes_.size() && nodes_[block.slot].entry.generation == block.generation &&
         nodes_[block.slot].entry.state != HostState::kAbsent;
}

const HostEntry& HostTier::at(HostBlock block) const {
  ENSURE(valid(block));
  return nodes_[block.slot].entry;
}

HostTier::Node& HostTier::node(HostBlock block) {
  ENSURE(valid(block));
  return nodes_[block.slot];
}

bool HostTier::make_room(std::uint64_t bytes, Instant now, HostRemovals& removals) {
  const std::uint64_t units = units_of(bytes);
  if (units > space_.units()) return false;
  for (std::size_t evicted = 0; !space_.fits(units); ++evicted) {
    const bool is_above = !victims_above_.empty();
    const std::set<EvictionKey>& victims = is_above ? victims_above_ : victims_within_;
    if (victims.empty() || evicted == kEvictionsMax) return false;
    const auto slot = std::get<2>(*victims.begin());
    const bool is_alone = tenants_.at(nodes_[slot].entry.info.tenant).units == held_units_;
    remove(slot, is_above && !is_alone ? MissReason::kEvictedShare : MissReason::kEvictedHost, now,
           removals);
  }
  return true;
}

bool HostTier::consistent(const BlockInfo& info) const {
  const auto parent_name = parent_of(info);
  if (parent_name == info.name) return false;
  const std::uint32_t parent_depth =
      info.name.group == KvGroup::kWindow ? info.depth : info.depth - 1;
  if (const auto parent = parent_name ? find(*parent_name) : std::nullopt) {
    const BlockInfo& above = at(*parent).info;
    if (above.depth != parent_depth || above.root != info.root) return false;
  }
  const auto self = index_.find(info.name);
  if (self == index_.end()) return true;
  for (std::uint32_t child = nodes_[self->second].first_child; child != kNone;
       child = nodes_[child].next) {
    const BlockInfo& below = nodes_[child].entry.info;
    const std::uint32_t expected =
        below.name.group == KvGroup::kWindow ? below.depth : below.depth - 1;
    if (expected != info.depth || below.root != info.root) return false;
  }
  return true;
}

std::optional<HostBlock> HostTier::begin_fill(const BlockInfo& info, std::uint64_t bytes) {
  ENSURE(bytes > 0 && !find(info.name) && consistent(info));
  const auto first = space_.take(units_of(bytes));
  if (!first) return std::nullopt;
  const auto absent = index_.find(info.name);
  const std::uint32_t slot = absent != index_.end() ? absent->second : take_slot();
  absent_.erase(slot);
  index_[info.name] = slot;
  HostEntry& entry = nodes_[slot].entry;
  entry.info = info;
  entry.info.slices.clear();
  entry.offset = *first * kArenaUnit;
  entry.bytes = bytes;
  entry.generation = ++last_generation_;
  entry.state = HostState::kFilling;
  entry.refused = MissReason::kNone;
  ++counts_.filling;
  held_units_ += units_of(bytes);
  change_tenant(info.tenant, [&](Tenant& tenant) { tenant.units += units_of(bytes); });
  link(slot);
  return HostBlock{slot, last_generation_};  // link() may have moved the entries
}

void HostTier::seal(HostBlock block, std::vector<SliceSum> slices, Instant now) {
  HostEntry& entry = node(block).entry;
  ENSURE(entry.state == HostState::kFilling);
  entry.info.slices = std::move(slices);
  entry.state = HostState::kSealed;
  entry.tick = next_tick();
  entry.used_at = now;
  --counts_.filling;
  ++counts_.blocks;
  counts_.bytes += entry.bytes;
  HostRoot& root = roots_[entry.info.root];
  ++root.blocks;
  root.bytes += entry.bytes;
  refresh(block.slot);
}

void HostTier::retire(HostBlock block, MissReason reason, Instant now, HostRemovals& removals) {
  const HostState state = at(block).state;
  ENSURE(state == HostState::kFilling || state == HostState::kSealed);
  std::vector<std::uint32_t> subtree;
  collect(block.slot, subtree);
  for (std::size_t i = subtree.size(); i-- > 1;)
    remove(subtree[i], MissReason::kParentGone, now, removals);
  remove(block.slot, reason, now, removals);
}

void HostTier::retire_orphans(const BlockName& absent, Instant now, HostRemovals& removals) {
  const auto found = index_.find(absent);
  if (found == index_.end() || nodes_[found->second].entry.state != HostState::kAbsent) return;
  std::vector<std::uint32_t> subtree;
  collect(found->second, subtree);
  for (std::size_t i = subtree.size(); i-- > 1;)
    remove(subtree[i], MissReason::kParentGone, now, removals);
}

void HostTier::pin(HostBlock block) {
  HostEntry& entry = node(block).entry;
  ENSURE(entry.state == HostState::kSealed);
  if (entry.pins++ == 0) ++counts_.pinned;
  refresh(block.slot);
}

void HostTier::unpin(HostBlock block) {
  HostEntry& entry = node(block).entry;
  ENSURE(entry.pins > 0);
  if (--entry.pins == 0) --counts_.pinned;
  refresh(block.slot);
  finish(block.slot);
}

void HostTier::hold(HostBlock block) {
  ++node(block).entry.holds;
  refresh(block.slot);
}

void HostTier::unhold(HostBlock block) {
  HostEntry& entry = node(block).entry;
  ENSURE(entry.holds > 0);
  --entry.holds;
  refresh(block.slot);
  finish(block.slot);
}

void HostTier::touch(HostBlock block, std::uint64_t tick, Instant now) {
  Node& touched = node(block);
  if (touched.evictable) set_evictable(block.slot, false);
  touched.entry.tick = tick;
  touched.entry.used_at = now;
  refresh(block.slot);
}

std::optional<std::uint64_t> HostTier::take_scratch(std::uint64_t bytes) {
  const auto first = space_.take(units_of(bytes));
  if (!first) return std::nullopt;
  return *first * kArenaUnit;
}

void HostTier::give_scratch(std::uint64_t offset, std::uint64_t bytes) {
  space_.give(offset / kArenaUnit, units_of(bytes));
}

std::uint64_t HostTier::release_corrupt() {
  const std::uint64_t bytes = corrupt_units_ * kArenaUnit;
  for (const auto& [first, units] : corrupt_)
    space_.give(first, units);
  corrupt_.clear();
  corrupt_units_ = 0;
  return bytes;
}

std::optional<HostBlock> HostTier::sealed_in_slot(std::size_t slot) const {
  if (slot >= nodes_.size() || nodes_[slot].entry.state != HostState::kSealed) return std::nullopt;
  return HostBlock{static_cast<std::uint32_t>(slot), nodes_[slot].entry.generation};
}

std::vector<BlockName> HostTier::absent_parents() const {
  std::vector<BlockName> names;
  for (const std::uint32_t slot : absent_)
    names.push_back(nodes_[slot].entry.info.name);
  return names;
}

HostUsage HostTier::usage() const {
  HostUsage usage = counts_;
  usage.corrupt_bytes = corrupt_units_ * kArenaUnit;
  usage.free_bytes = space_.free_units() * kArenaUnit;
  usage.arena_bytes = space_.units() * kArenaUnit;
  return usage;
}

HostAges HostTier::ages(Instant now) const {
  constexpr std::size_t kSample = 1024;
  HostAges ages;
  std::vector<Duration> idle;
  const std::size_t step = nodes_.size() / kSample + 1;
  for (std::size_t slot = 0; slot < nodes_.size(); slot += step)
    if (nodes_[slot].entry.state == HostState::kSealed)
      idle.push_back(now - nodes_[slot].entry.used_at);
  if (!idle.empty()) {
    const auto middle = idle.begin() + static_cast<std::ptrdiff_t>(idle.size() / 2);
    std::ranges::nth_element(idle, middle);
    ages.median = *middle;
  }
  for (const auto* victims : {&victims_above_, &victims_within_})
    if (!victims->empty())
      ages.oldest =
          std::max(ages.oldest, now - nodes_[std::get<2>(*victims->begin())].entry.used_at);
  return ages;
}

HostTier::EvictionKey HostTier::eviction_key(std::uint32_t slot) const {
  const HostEntry& entry = nodes_[slot].entry;
  return {entry.tick, UINT32_MAX - entry.info.depth, slot};
}

std::uint32_t HostTier::take_slot() {
  if (free_slots_.empty()) {
    nodes_.emplace_back();
    return static_cast<std::uint32_t>(nodes_.size() - 1);
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void HostTier::link(std::uint32_t slot) {
  const auto name = parent_of(nodes_[slot].entry.info);
  if (!name) return;
  const auto found = index_.find(*name);
  std::uint32_t parent = kNone;
  if (found != index_.end()) {
    parent = found->second;
  } else {
    parent = take_slot();
    nodes_[parent].entry.info.name = *name;
    index_.emplace(*name, parent);
    absent_.insert(parent);
  }
  Node& child = nodes_[slot];
  child.parent = parent;
  child.next = nodes_[parent].first_child;
  if (child.next != kNone) nodes_[child.next].previous = slot;
  nodes_[parent].first_child = slot;
  ++nodes_[parent].entry.children;
  refresh(parent);
}

void HostTier::unlink(std::uint32_t slot) {
  Node& child = nodes_[slot];
  if (child.parent == kNone) return;
  const std::uint32_t parent = std::exchange(child.parent, kNone);
  if (child.previous != kNone) {
    nodes_[child.previous].next = child.next;
  } else {
    nodes_[parent].first_child = child.next;
  }
  if (child.next != kNone) nodes_[child.next].previous = child.previous;
  child.next = child.previous = kNone;
  --nodes_[parent].entry.children;
  if (nodes_[parent].entry.state == HostState::kAbsent && nodes_[parent].entry.children == 0) {
    index_.erase(nodes_[parent].entry.info.name);
    absent_.erase(parent);
    free_slot(parent);
  } else {
    refresh(parent);
  }
}

void HostTier::refresh(std::uint32_t slot) {
  Node& changed = nodes_[slot];
  const HostEntry& entry = changed.entry;
  const bool evictable = entry.state == HostState::kSealed && entry.pins == 0 && entry.holds == 0 &&
                         entry.children == 0;
  if (evictable != changed.evictable) set_evictable(slot, evictable);
}

void HostTier::set_evictable(std::uint32_t slot, bool evictable) {
  nodes_[slot].evictable = evictable;
  change_tenant(nodes_[slot].entry.info.tenant, [&](Tenant& tenant) {
    if (evictable) {
      tenant.evictable.insert(eviction_key(slot));
    } else {
      tenant.evictable.erase(eviction_key(slot));
    }
  });
}

bool HostTier::above_share(const Tenant& tenant) const {
  return tenant.units > tenant_units_max_;
}

std::set<HostTier::EvictionKey>& HostTier::victims(const Tenant& tenant) {
  return above_share(tenant) ? victims_above_ : victims_within_;
}

template <typename Change>
void HostTier::change_tenant(std::uint64_t id, Change change) {
  Tenant& tenant = tenants_[id];
  if (!tenant.evictable.empty()) victims(tenant).erase(*tenant.evictable.begin());
  change(tenant);
  if (!tenant.evictable.empty()) victims(tenant).insert(*tenant.evictable.begin());
  if (tenant.units == 0) tenants_.erase(id);
}

void HostTier::collect(std::uint32_t slot, std::vector<std::uint32_t>& subtree) const {
  subtree.push_back(slot);
  for (std::size_t next = 0; next < subtree.size(); ++next)
    for (std::uint32_t child = nodes_[subtree[next]].first_child; child != kNone;
         child = nodes_[child].next)
      subtree.push_back(child);
}

void HostTier::remove(std::uint32_t slot, MissReason reason, Instant now, HostRemovals& removals) {
  HostEntry& entry = nodes_[slot].entry;
  ENSURE(entry.children == 0);
  if (entry.state == HostState::kSealed) {
    removals.push_back({entry.info.name, reason, entry.refused, entry.bytes, now - entry.used_at,
                        entry.info.ttl_class, entry.info.tenant});
    --counts_.blocks;
    counts_.bytes -= entry.bytes;
    const auto root = roots_.find(entry.info.root);
    root->second.bytes -= entry.bytes;
    if (--root->second.blocks == 0) roots_.erase(root);
  } else {
    --counts_.filling;
  }
  entry.state = HostState::kRetiring;
  entry.corrupt = reason == MissReason::kCorrupt;
  ++counts_.retiring;
  refresh(slot);
  const std::uint64_t units = units_of(entry.bytes);
  held_units_ -= units;
  change_tenant(entry.info.tenant, [&](Tenant& tenant) { tenant.units -= units; });
  index_.erase(entry.info.name);
  unlink(slot);
  finish(slot);
}

void HostTier::finish(std::uint32_t slot) {
  const HostEntry& entry = nodes_[slot].entry;
  if (entry.state != HostState::kRetiring || entry.pins > 0 || entry.holds > 0) return;
  const std::uint64_t first = entry.offset / kArenaUnit;
  const std::uint64_t units = units_of(entry.bytes);
  if (entry.corrupt) {
    keep_corrupt(first, units);
  } else {
    space_.give(first, units);
  }
  --counts_.retiring;
  free_slot(slot);
}

void HostTier::free_slot(std::uint32_t slot) {
  nodes_[slot] = Node{};
  free_slots_.push_back(slot);
}

void HostTier::keep_corrupt(std::uint64_t first, std::uint64_t units) {
  corrupt_.emplace_back(first, units);
  corrupt_units_ += units;
  while (corrupt_units_ > space_.units() / kCorruptShare) {
    const auto [oldest, length] = corrupt_.front();
    corrupt_.pop_front();
    corrupt_units_ -= length;
    space_.give(oldest, length);
  }
}

void HostTier::check() const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  std::uint64_t used = corrupt_units_;
  std::size_t evictable = 0;
  std::uint64_t held_units = held_units_;
  std::unordered_map<std::uint64_t, std::uint64_t> held;  // units by tenant
  for (std::uint32_t slot = 0; slot < nodes_.size(); ++slot) {
    const HostEntry& entry = nodes_[slot].entry;
    std::uint32_t children = 0;
    for (std::uint32_t child = nodes_[slot].first_child; child != kNone;
         child = nodes_[child].next) {
      ENSURE(nodes_[child].parent == slot &&
             parent_of(nodes_[child].entry.info) == entry.info.name);
      ++children;
    }
    ENSURE(children == entry.children);
    ENSURE(absent_.contains(slot) == (entry.state == HostState::kAbsent && children > 0));
    evictable += nodes_[slot].evictable ? 1 : 0;
    if (entry.state == HostState::kAbsent) continue;
    places.emplace_back(entry.offset / kArenaUnit, units_of(entry.bytes));
    used += units_of(entry.bytes);
    const auto found = index_.find(entry.info.name);
    if (entry.state == HostState::kRetiring) {
      ENSURE(children == 0 && (entry.pins > 0 || entry.holds > 0));
      ENSURE(found == index_.end() || found->second != slot);
    } else {
      held[entry.info.tenant] += units_of(entry.bytes);
      ENSURE(found != index_.end() && found->second == slot);
      ENSURE(entry.state == HostState::kSealed || entry.pins == 0);
    }
  }
  for (const auto& place : corrupt_)
    places.push_back(place);
  std::sort(places.begin(), places.end());
  for (std::size_t i = 1; i < places.size(); ++i)
    ENSURE(places[i - 1].first + places[i - 1].second <= places[i].first);
  ENSURE(held.size() == tenants_.size());
  std::uint64_t of_roots = 0;
  for (const auto& [key, root] : roots_)
    of_roots += root.blocks;
  ENSURE(of_roots == counts_.blocks);
  std::size_t victims = 0;
  for (const auto& [id, tenant] : tenants_) {
    ENSURE(tenant.units == held.at(id));
    held_units -= tenant.units;
    evictable -= tenant.evictable.size();
    if (tenant.evictable.empty()) continue;
    ++victims;
    ENSURE((above_share(tenant) ? victims_above_ : victims_within_)
               .contains(*tenant.evictable.begin()));
  }
  ENSURE(held_units == 0 && evictable == 0);
  ENSURE(victims == victims_above_.size() + victims_within_.size());
  ENSURE(used + space_.free_units() <= space_.units());  // the rest is scratch
}

}  // namespace penstock::kvcache
