#include "core/kvcache/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

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

// Bits of a holder in tiers other than these (a bit each, by KvTier).
std::uint8_t bits_without(std::uint8_t tiers) {
  unsigned bits = 0xFF;
  for (std::size_t tier = 0; tier < kKvTiers; ++tier) {
    const auto bit = bit_of(static_cast<KvTier>(tier));
    if (bit && ((tiers >> tier) & 1U) != 0) bits &= ~((1U | 1U << kWindowShift) << *bit);
  }
  return static_cast<std::uint8_t>(bits);
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

PrefixIndex::PrefixIndex(std::size_t blocks_max) : table_(blocks_max) {}

// --- the feed

PrefixIndex::Feed PrefixIndex::apply(KvHostId host, const kv::Events& events) {
  table_.sweep();
  auto known = hosts_.find(host);
  if (events.snapshot) {
    const bool goes_on = known != hosts_.end() && known->second.in_snapshot &&
                         known->second.epoch == events.epoch && known->second.next == events.first;
    if (!goes_on) {
      forget(host);
      const HolderTable::Feed feed = table_.add_feed();
      feed_hosts_.resize(table_.feed_numbers());
      feed_tiers_.resize(table_.feed_numbers());
      feed_hosts_[feed] = host;
      known = hosts_.emplace(host, Host{feed, events.epoch, events.first, true}).first;
    }
    for (const kv::Event& event : events.events) {
      if (event.stored) set(known->second.feed, event);
    }
    known->second.in_snapshot = !events.snapshot_end;
    feed_tiers_[known->second.feed] = bits_without(events.tiers_off);
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
    set(state.feed, events.events[i]);
  state.next = std::max(state.next, events.first + events.events.size());
  feed_tiers_[state.feed] = bits_without(events.tiers_off);
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
  table_.drop_feed(known->second.feed);
  hosts_.erase(known);
}

void PrefixIndex::set(HolderTable::Feed feed, const kv::Event& event) {
  const auto bit = bit_of(event.tier);
  if (!bit) return;
  const unsigned shift = *bit + (event.name.group == KvGroup::kWindow ? kWindowShift : 0);
  const Holder holder{feed, static_cast<std::uint8_t>(1U << shift)};
  if (event.stored) {
    table_.store(tag_of(event.name.key), holder);
  } else {
    table_.remove(tag_of(event.name.key), holder);
  }
}

void PrefixIndex::prefetch(std::span<const BlockKey> keys) const {
  for (const BlockKey& key : keys)
    table_.prefetch(tag_of(key));
}

// --- match

KvMatch PrefixIndex::match(std::span<const BlockKey> keys) const {
  KvMatch result;
  std::vector<std::uint32_t> run_of(table_.feed_numbers(), kNoRun);  // index in result.hosts
  for (std::size_t i = 0; i < std::min(kPrefetchAhead, keys.size()); ++i)
    table_.prefetch(tag_of(keys[i]));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i + kPrefetchAhead < keys.size()) table_.prefetch(tag_of(keys[i + kPrefetchAhead]));
    const auto depth = static_cast<std::uint32_t>(i);
    std::uint8_t held = 0;
    table_.visit(tag_of(keys[i]), [&](Holder holder) {
      holder.bits &= feed_tiers_[holder.feed];
      held |= holder.bits;
      if (depth == 0 && (holder.bits & kHistoryBits) != 0) {
        run_of[holder.feed] = static_cast<std::uint32_t>(result.hosts.size());
        result.hosts.emplace_back().host = feed_hosts_[holder.feed];
      }
      const std::uint32_t run = run_of[holder.feed];
      if (run != kNoRun) extend(result.hosts[run], depth, holder.bits);
    });
    if ((held & kHistoryBits) == 0) break;
    ++result.anywhere;
    if ((held >> kWindowShift) != 0) result.windows.push_back(depth);
  }
  std::ranges::sort(result.hosts, {}, &HostMatch::host);
  return result;
}

}  // namespace penstock::kvcache
