#include "core/kvcache/holder_table.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace penstock::kvcache {
namespace {

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

}  // namespace

HolderTable::HolderTable(std::size_t blocks_max) : blocks_max_(blocks_max), tables_(kTables) {}

// --- feeds

HolderTable::Feed HolderTable::add_feed() {
  constexpr std::size_t kFeedsMax = std::size_t{std::numeric_limits<Feed>::max()} + 1;
  // Two whole passes give every dead number back.
  for (std::size_t i = 0; i < 2 * kTables && free_feeds_.empty() && alive_.size() == kFeedsMax; ++i)
    sweep();
  if (!free_feeds_.empty()) {
    const Feed feed = free_feeds_.back();
    free_feeds_.pop_back();
    alive_[feed] = true;
    return feed;
  }
  ENSURE(alive_.size() < kFeedsMax);  // a gateway has fewer hosts than that
  alive_.push_back(true);
  return static_cast<Feed>(alive_.size() - 1);
}

void HolderTable::drop_feed(Feed feed) {
  alive_[feed] = false;
  dead_feeds_.push_back(feed);
}

void HolderTable::sweep() {
  if (swept_feeds_.empty()) {
    if (dead_feeds_.empty()) return;
    swept_feeds_ = std::exchange(dead_feeds_, {});
    sweep_at_ = 0;
  }
  Table& table = tables_[sweep_at_];
  for (std::uint32_t i = 0; i < table.size; ++i) {
    // erase() moves a later entry here, or one from the start that has been looked at.
    while (table.entries[i].used() && tidy(table.entries[i]))
      erase(table, i);
  }
  if (++sweep_at_ < kTables) return;
  free_feeds_.insert(free_feeds_.end(), swept_feeds_.begin(), swept_feeds_.end());
  swept_feeds_.clear();
}

// --- holders

bool HolderTable::store(std::uint64_t tag, Holder holder) {
  Entry* const entry = find_or_insert(tag);
  if (entry == nullptr) return false;
  for (std::size_t i = 0; i < kInEntry; ++i) {
    if (entry->bits[i] != 0 && entry->feeds[i] != holder.feed) continue;
    entry->feeds[i] = holder.feed;
    entry->bits[i] |= holder.bits;
    return true;
  }
  auto& more = more_[tag];
  const auto found = std::ranges::find(more, holder.feed, &Holder::feed);
  if (found != more.end()) {
    found->bits |= holder.bits;
    return true;
  }
  more.push_back(holder);
  ++more_holders_;
  entry->more = 1;
  tidy(*entry);
  return true;
}

void HolderTable::remove(std::uint64_t tag, Holder holder) {
  auto* const entry = const_cast<Entry*>(find(tag));
  if (entry == nullptr) return;
  const auto left = static_cast<std::uint8_t>(~holder.bits);
  for (std::size_t i = 0; i < kInEntry; ++i) {
    if (entry->feeds[i] == holder.feed) entry->bits[i] &= left;
  }
  if (entry->more != 0) {
    for (Holder& other : more_[tag]) {
      if (other.feed == holder.feed) other.bits &= left;
    }
  }
  Table& table = table_of(tag);
  if (tidy(*entry)) erase(table, static_cast<std::uint32_t>(entry - table.entries.get()));
}

bool HolderTable::tidy(Entry& entry) {
  std::size_t kept = 0;
  const auto keep = [&](Holder holder) {
    if (kept == kInEntry) return false;
    entry.feeds[kept] = holder.feed;
    entry.bits[kept++] = holder.bits;
    return true;
  };
  const auto gone = [&](const Holder& h) { return h.bits == 0 || !alive_[h.feed]; };
  for (std::size_t i = 0; i < kInEntry; ++i) {
    const Holder holder{entry.feeds[i], entry.bits[i]};
    if (!gone(holder)) keep(holder);
  }
  std::fill(entry.bits.begin() + static_cast<std::ptrdiff_t>(kept), entry.bits.end(),
            std::uint8_t{0});
  if (entry.more == 0) return kept == 0;
  auto& more = more_[entry.tag];
  more_holders_ -= more.size();
  std::erase_if(more, gone);
  while (!more.empty() && keep(more.back()))
    more.pop_back();
  more_holders_ += more.size();
  if (more.empty()) {
    more_.erase(entry.tag);
    entry.more = 0;
  }
  return kept == 0;
}

// --- the table

const HolderTable::Entry* HolderTable::find(std::uint64_t tag) const {
  const Table& table = tables_[tag >> kTagShift];
  if (table.size == 0) return nullptr;
  for (std::uint32_t at = home_of(tag, table.size);; at = after(at, table.size)) {
    const Entry& entry = table.entries[at];
    if (!entry.used()) return nullptr;
    if (entry.tag == tag) return &entry;
  }
}

void HolderTable::prefetch(std::uint64_t tag) const {
  const Table& table = tables_[tag >> kTagShift];
  if (table.size == 0) return;
  // A probe reads three entries of 24 bytes on average, so two lines.
  const auto* const line =
      reinterpret_cast<const std::byte*>(table.entries.get() + home_of(tag, table.size));
  __builtin_prefetch(line);
  __builtin_prefetch(line + 64);
}

HolderTable::Entry* HolderTable::find_or_insert(std::uint64_t tag) {
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

void HolderTable::place(Table& table, const Entry& entry) {
  std::uint32_t at = home_of(entry.tag, table.size);
  while (table.entries[at].used())
    at = after(at, table.size);
  table.entries[at] = entry;
}

void HolderTable::grow(Table& table) {
  Table larger;
  larger.size = std::max(table.size + 8, table.size + table.size / 4);
  larger.entries = std::make_unique<Entry[]>(larger.size);
  larger.used = table.used;
  for (std::uint32_t i = 0; i < table.size; ++i) {
    if (table.entries[i].used()) place(larger, table.entries[i]);
  }
  entries_ += larger.size - table.size;
  table = std::move(larger);
}

void HolderTable::erase(Table& table, std::uint32_t at) {
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

std::size_t HolderTable::memory_bytes() const {
  constexpr std::size_t kMapNode = 64;  // a node, its bucket and the list's header
  return kTables * sizeof(Table) + entries_ * sizeof(Entry) + more_.size() * kMapNode +
         2 * more_holders_ * sizeof(Holder);  // lists grow by doubling
}

}  // namespace penstock::kvcache
