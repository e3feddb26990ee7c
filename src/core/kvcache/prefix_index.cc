#include "core/kvcache/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"

namespace penstock::kvcache {
namespace {

// Probes under way in match(): enough to hide memory behind each other, few enough for the CPU's
// buffers of outstanding misses.
constexpr std::size_t kPrefetchAhead = 16;
constexpr std::uint32_t kNoRun = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint8_t kHistoryBits = 0x0F;
constexpr unsigned kWindowShift = 4;

// Bit of a tier within a group's four; nullopt for kPeer, which is where a block came from, never
// where it is.
std::optional<unsigned> bit_of(KvTier tier) {
  switch (tier) {
    case KvTier::kDevice:
      return 0;
    case KvTier::kHost:
      return 1;
    case KvTier::kDisk:
      return 2;
    case KvTier::kCluster:
      return 3;
    case KvTier::kPeer:
      return std::nullopt;
  }
  return std::nullopt;
}
constexpr KvTier kTierOfBit[] = {KvTier::kDevice, KvTier::kHost, KvTier::kDisk, KvTier::kCluster};

std::uint64_t tag_of(const BlockKey& key) {
  std::uint64_t tag = 0;
  std::memcpy(&tag, key.bytes.data(), sizeof tag);
  return tag;
}

// Where a tag's probe begins: the bits below those that chose the table, scaled to its size.
std::uint32_t home_of(std::uint64_t tag, std::uint32_t size) {
  const std::uint64_t bits = (tag << 12) >> 32;
  return static_cast<std::uint32_t>(bits * size >> 32);
}

std::uint32_t after(std::uint32_t at, std::uint32_t size) {
  return at + 1 == size ? 0 : at + 1;
}

// Steps from one place to a later one in a ring.
std::uint32_t distance(std::uint32_t from, std::uint32_t to, std::uint32_t size) {
  return to >= from ? to - from : to + size - from;
}

// The hit of one host while match() scans; `held` is what it holds of block `depth`.
void extend(HostMatch& match, std::uint32_t depth, std::uint8_t held) {
  const unsigned bits = held & kHistoryBits;
  if (match.history != depth || bits == 0) return;
  const auto fastest = std::to_underlying(kTierOfBit[std::countr_zero(bits)]);
  ++match.history;
  ++match.fastest[fastest];
  for (std::size_t tier = fastest; tier < kKvTiers; ++tier) {
    if (match.leading[tier] == depth) ++match.leading[tier];
  }
  if ((held >> kWindowShift) != 0) match.windows.push_back(depth);
}

}  // namespace

PrefixIndex::PrefixIndex(std::size_t blocks_max) : blocks_max_(blocks_max), tables_(kTables) {}

// --- the feed

PrefixIndex::Feed PrefixIndex::apply(KvHostId host, const kv::Events& events) {
  sweep_one_table();
  auto known = hosts_.find(host);
  if (events.snapshot) {
    const bool goes_on = known != hosts_.end() && known->second.in_snapshot &&
                         known->second.epoch == events.epoch && known->second.next == events.first;
    if (!goes_on) {
      forget(host);
      const Feeder feeder = new_feeder();
      feeder_hosts_[feeder] = host;
      known = hosts_.emplace(host, Host{feeder, events.epoch, events.first, true}).first;
    }
    for (const kv::Event& event : events.events) {
      if (event.stored) set(known->second.feeder, event);
    }
    known->second.in_snapshot = !events.snapshot_end;
    return Feed::kApplied;
  }
  if (known == hosts_.end() || known->second.in_snapshot || known->second.epoch != events.epoch ||
      events.first > known->second.next) {
    forget(host);
    return Feed::kResubscribe;
  }
  // A replay may begin before what is known.
  Host& state = known->second;
  for (std::size_t i = state.next - events.first; i < events.events.size(); ++i)
    set(state.feeder, events.events[i]);
  state.next = std::max(state.next, events.first + events.events.size());
  return Feed::kApplied;
}

kv::Subscribe PrefixIndex::subscribe(KvHostId host) const {
  const auto known = hosts_.find(host);
  if (known == hosts_.end() || known->second.in_snapshot || known->second.next == 0) return {};
  return {known->second.epoch, known->second.next - 1};
}

void PrefixIndex::forget(KvHostId host) {
  const auto known = hosts_.find(host);
  if (known == hosts_.end()) return;
  alive_[known->second.feeder] = false;
  dead_feeders_.push_back(known->second.feeder);
  hosts_.erase(known);
}

PrefixIndex::Feeder PrefixIndex::new_feeder() {
  constexpr std::size_t kFeedersMax = std::size_t{std::numeric_limits<Feeder>::max()} + 1;
  // Two whole passes give every dead number back.
  for (std::size_t i = 0; i < 2 * kTables && free_feeders_.empty() && alive_.size() == kFeedersMax;
       ++i)
    sweep_one_table();
  if (!free_feeders_.empty()) {
    const Feeder feeder = free_feeders_.back();
    free_feeders_.pop_back();
    alive_[feeder] = true;
    return feeder;
  }
  ENSURE(alive_.size() < kFeedersMax);  // a gateway has fewer hosts than that
  alive_.push_back(true);
  feeder_hosts_.emplace_back();
  return static_cast<Feeder>(alive_.size() - 1);
}

void PrefixIndex::set(Feeder feeder, const kv::Event& event) {
  const auto bit = bit_of(event.tier);
  if (!bit) return;
  const unsigned shift = *bit + (event.name.group == KvGroup::kWindow ? kWindowShift : 0);
  const Holder holder{feeder, static_cast<std::uint8_t>(1U << shift)};
  if (event.stored) {
    store(tag_of(event.name.key), holder);
  } else {
    remove(tag_of(event.name.key), holder);
  }
}

void PrefixIndex::store(std::uint64_t tag, Holder holder) {
  Entry* const entry = find_or_insert(tag);
  if (entry == nullptr) return;
  const auto try_entry = [&] {
    for (std::size_t i = 0; i < kHostsInEntry; ++i) {
      if (entry->tiers[i] != 0 && entry->feeders[i] != holder.feeder) continue;
      entry->feeders[i] = holder.feeder;
      entry->tiers[i] |= holder.tiers;
      return true;
    }
    return false;
  };
  if (try_entry()) return;
  auto& more = more_[tag];
  const auto found = std::ranges::find(more, holder.feeder, &Holder::feeder);
  if (found != more.end()) {
    found->tiers |= holder.tiers;
    return;
  }
  more.push_back(holder);
  entry->more = 1;
  tidy(*entry);
}

void PrefixIndex::remove(std::uint64_t tag, Holder holder) {
  auto* const entry = const_cast<Entry*>(find(tag));
  if (entry == nullptr) return;
  const auto left = static_cast<std::uint8_t>(~holder.tiers);
  for (std::size_t i = 0; i < kHostsInEntry; ++i) {
    if (entry->feeders[i] == holder.feeder) entry->tiers[i] &= left;
  }
  if (entry->more != 0) {
    for (Holder& other : more_[tag]) {
      if (other.feeder == holder.feeder) other.tiers &= left;
    }
  }
  Table& table = table_of(tag);
  if (tidy(*entry)) erase(table, static_cast<std::uint32_t>(entry - table.entries.get()));
}

bool PrefixIndex::tidy(Entry& entry) {
  std::size_t kept = 0;
  const auto keep = [&](Holder holder) {
    if (kept == kHostsInEntry) return false;
    entry.feeders[kept] = holder.feeder;
    entry.tiers[kept++] = holder.tiers;
    return true;
  };
  const auto gone = [&](const Holder& h) { return h.tiers == 0 || !alive_[h.feeder]; };
  for (std::size_t i = 0; i < kHostsInEntry; ++i) {
    const Holder holder{entry.feeders[i], entry.tiers[i]};
    if (!gone(holder)) keep(holder);
  }
  std::fill(entry.tiers.begin() + static_cast<std::ptrdiff_t>(kept), entry.tiers.end(),
            std::uint8_t{0});
  if (entry.more == 0) return kept == 0;
  auto& more = more_[entry.tag];
  std::erase_if(more, gone);
  while (!more.empty() && keep(more.back()))
    more.pop_back();
  if (more.empty()) {
    more_.erase(entry.tag);
    entry.more = 0;
  }
  return kept == 0;
}

void PrefixIndex::sweep_one_table() {
  if (swept_feeders_.empty()) {
    if (dead_feeders_.empty()) return;
    swept_feeders_ = std::exchange(dead_feeders_, {});
    sweep_at_ = 0;
  }
  Table& table = tables_[sweep_at_];
  for (std::uint32_t i = 0; i < table.size; ++i) {
    // erase() moves a later entry here, or one from the start that has been looked at.
    while (table.entries[i].used() && tidy(table.entries[i]))
      erase(table, i);
  }
  if (++sweep_at_ < kTables) return;
  free_feeders_.insert(free_feeders_.end(), swept_feeders_.begin(), swept_feeders_.end());
  swept_feeders_.clear();
}

// --- the table

const PrefixIndex::Entry* PrefixIndex::find(std::uint64_t tag) const {
  const Table& table = tables_[tag >> kTagShift];
  if (table.size == 0) return nullptr;
  for (std::uint32_t at = home_of(tag, table.size);; at = after(at, table.size)) {
    const Entry& entry = table.entries[at];
    if (!entry.used()) return nullptr;
    if (entry.tag == tag) return &entry;
  }
}

void PrefixIndex::prefetch(std::uint64_t tag) const {
  const Table& table = tables_[tag >> kTagShift];
  if (table.size == 0) return;
  // A probe reads three entries of 24 bytes on average, so two lines.
  const auto* const line =
      reinterpret_cast<const std::byte*>(table.entries.get() + home_of(tag, table.size));
  __builtin_prefetch(line);
  __builtin_prefetch(line + 64);
}

void PrefixIndex::prefetch(std::span<const BlockKey> keys) const {
  for (const BlockKey& key : keys)
    prefetch(tag_of(key));
}

PrefixIndex::Entry* PrefixIndex::find_or_insert(std::uint64_t tag) {
  if (const Entry* found = find(tag)) return const_cast<Entry*>(found);
  if (blocks_ >= blocks_max_) {
    ++dropped_;
    return nullptr;
  }
  Table& table = table_of(tag);
  if ((table.used + 1) * std::uint64_t{5} > table.size * std::uint64_t{4}) grow(table);
  ++blocks_;
  ++table.used;
  std::uint32_t at = home_of(tag, table.size);
  while (table.entries[at].used())
    at = after(at, table.size);
  table.entries[at].tag = tag;
  return &table.entries[at];
}

void PrefixIndex::place(Table& table, const Entry& entry) {
  std::uint32_t at = home_of(entry.tag, table.size);
  while (table.entries[at].used())
    at = after(at, table.size);
  table.entries[at] = entry;
}

void PrefixIndex::grow(Table& table) {
  Table larger;
  larger.size = std::max(table.size + 8, table.size + table.size / 4);
  larger.entries = std::make_unique<Entry[]>(larger.size);
  larger.used = table.used;
  for (std::uint32_t i = 0; i < table.size; ++i) {
    if (table.entries[i].used()) place(larger, table.entries[i]);
  }
  table = std::move(larger);
}

void PrefixIndex::erase(Table& table, std::uint32_t at) {
  std::uint32_t hole = at;
  for (std::uint32_t i = after(at, table.size); table.entries[i].used(); i = after(i, table.size)) {
    // An entry may move back to the hole unless its home lies behind it.
    const std::uint32_t home = home_of(table.entries[i].tag, table.size);
    if (distance(home, i, table.size) < distance(hole, i, table.size)) continue;
    table.entries[hole] = table.entries[i];
    hole = i;
  }
  table.entries[hole] = Entry{};
  --table.used;
  --blocks_;
}

// --- match

template <typename Visit>
void PrefixIndex::visit_holders(const Entry& entry, const Visit& visit) const {
  for (std::size_t i = 0; i < kHostsInEntry && entry.tiers[i] != 0; ++i) {
    if (alive_[entry.feeders[i]]) visit(Holder{entry.feeders[i], entry.tiers[i]});
  }
  if (entry.more == 0) return;
  for (const Holder& holder : more_.at(entry.tag)) {
    if (alive_[holder.feeder]) visit(holder);
  }
}

KvMatch PrefixIndex::match(std::span<const BlockKey> keys) const {
  KvMatch result;
  std::vector<std::uint32_t> run_of(alive_.size(), kNoRun);  // feeder -> index in result.hosts
  for (std::size_t i = 0; i < std::min(kPrefetchAhead, keys.size()); ++i)
    prefetch(tag_of(keys[i]));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i + kPrefetchAhead < keys.size()) prefetch(tag_of(keys[i + kPrefetchAhead]));
    const Entry* const entry = find(tag_of(keys[i]));
    if (entry == nullptr) break;
    const auto depth = static_cast<std::uint32_t>(i);
    std::uint8_t held = 0;
    visit_holders(*entry, [&](Holder holder) {
      held |= holder.tiers;
      if (depth == 0 && (holder.tiers & kHistoryBits) != 0) {
        run_of[holder.feeder] = static_cast<std::uint32_t>(result.hosts.size());
        result.hosts.emplace_back().host = feeder_hosts_[holder.feeder];
      }
      const std::uint32_t run = run_of[holder.feeder];
      if (run != kNoRun) extend(result.hosts[run], depth, holder.tiers);
    });
    if ((held & kHistoryBits) == 0) break;
    ++result.anywhere;
    if ((held >> kWindowShift) != 0) result.windows.push_back(depth);
  }
  std::ranges::sort(result.hosts, {}, &HostMatch::host);
  return result;
}

std::size_t PrefixIndex::memory_bytes() const {
  std::size_t bytes = tables_.size() * sizeof(Table);
  for (const Table& table : tables_)
    bytes += table.size * sizeof(Entry);
  constexpr std::size_t kMapNode = 64;  // a node, its bucket and the list's header
  for (const auto& [tag, holders] : more_)
    bytes += kMapNode + holders.capacity() * sizeof(Holder);
  return bytes;
}

}  // namespace penstock::kvcache
