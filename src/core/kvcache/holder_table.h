// HolderTable: which of many feeds hold a block, by 64 bits of its key.
//
// The table is split by key into 4,096 small ones with open addressing, so growing never stops
// anybody for long (one small table, by a quarter). An entry holds the tag and up to kInEntry
// holders with a byte of bits each, which mean what the user says (tiers); the holders of blocks
// that more hold go to a side map. A feed is a number; a dropped feed is gone at once (its number
// is dead), and its entries are swept a small table at a time by later calls.
//
// Invariants: an entry exists while a feed, or a dead number not yet swept, holds it. New blocks
// over the limit are not taken (counted). Tags are uniform in their upper 52 bits.
// Units and shapes: 24 bytes an entry at load 0.64..0.8: 30 to 37.5 bytes a block with up to five
// holders.
// Errors: none. Concurrency: const functions may run in several threads at once while nothing else
// does. Source: docs/design/0005-kv-cache.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace penstock::kvcache {

class HolderTable {
 public:
  static constexpr std::size_t kInEntry = 5;
  using Feed = std::uint16_t;
  struct Holder {
    Feed feed = 0;
    std::uint8_t bits = 0;
  };

  explicit HolderTable(std::size_t blocks_max);

  // A number that no entry holds.
  Feed add_feed();
  // It holds nothing any more. O(1).
  void drop_feed(Feed feed);
  std::size_t feed_numbers() const { return alive_.size(); }  // above all numbers given out

  // Adds the holder's bits to the block's, or takes them away. False: not taken, the table is full.
  bool store(std::uint64_t tag, Holder holder);
  void remove(std::uint64_t tag, Holder holder);
  // Called now and then: cleans a small table of dropped feeds.
  void sweep();
  static constexpr std::size_t kSweepsOfPass = 4096;  // after so many all are clean
  bool has_to_sweep() const { return !swept_feeds_.empty() || !dead_feeds_.empty(); }

  // Begins to fetch from memory what find() of the tag will look at.
  void prefetch(std::uint64_t tag) const;
  // Calls visit(Holder) for those that hold the block. False: it is not in the table.
  template <typename Visit>
  bool visit(std::uint64_t tag, const Visit& visit) const;

  std::size_t blocks() const { return blocks_; }
  std::uint64_t dropped() const { return dropped_; }
  // Of tables and side map, with their unused room. O(1).
  std::size_t memory_bytes() const;

 private:
  struct Entry {
    std::uint64_t tag = 0;
    std::array<Feed, kInEntry> feeds{};
    std::array<std::uint8_t, kInEntry> bits{};  // 0: slot unused; used ones come first
    std::uint8_t more = 0;                      // 1: further holders in more_[tag]
    bool used() const { return bits[0] != 0; }
  };
  static_assert(sizeof(Entry) == 24);
  struct Table {
    std::unique_ptr<Entry[]> entries;
    std::uint32_t size = 0;
    std::uint32_t used = 0;
  };

  Table& table_of(std::uint64_t tag) { return tables_[tag >> kTagShift]; }
  const Entry* find(std::uint64_t tag) const;
  Entry* find_or_insert(std::uint64_t tag);
  // Drops holders of nothing and dead ones, and moves those of the side map up. True: none is left.
  bool tidy(Entry& entry);
  static void place(Table& table, const Entry& entry);
  void grow(Table& table);
  void erase(Table& table, std::uint32_t at);

  static constexpr unsigned kTagShift = 52;
  static constexpr std::size_t kTables = std::size_t{1} << (64 - kTagShift);
  static_assert(kSweepsOfPass == kTables);

  std::size_t blocks_max_;
  std::size_t blocks_ = 0;
  std::size_t entries_ = 0;  // room in all tables
  std::uint64_t dropped_ = 0;
  std::vector<Table> tables_;
  std::unordered_map<std::uint64_t, std::vector<Holder>> more_;
  std::size_t more_holders_ = 0;
  std::vector<bool> alive_;        // by number
  std::vector<Feed> free_feeds_;   // numbers that no entry holds
  std::vector<Feed> dead_feeds_;   // waiting for a sweep to start
  std::vector<Feed> swept_feeds_;  // being swept
  std::size_t sweep_at_ = 0;
};

template <typename Visit>
bool HolderTable::visit(std::uint64_t tag, const Visit& visit) const {
  const Entry* const entry = find(tag);
  if (entry == nullptr) return false;
  for (std::size_t i = 0; i < kInEntry && entry->bits[i] != 0; ++i) {
    if (alive_[entry->feeds[i]]) visit(Holder{entry->feeds[i], entry->bits[i]});
  }
  if (entry->more == 0) return true;
  for (const Holder& holder : more_.at(tag)) {
    if (alive_[holder.feed]) visit(holder);
  }
  return true;
}

}  // namespace penstock::kvcache
