// PrefixIndex: what every KV daemon holds, as a gateway knows it from their events.
//
// Each daemon (host) sends numbered events; apply() checks their order and asks for a new
// subscription when one is missing. A prompt's chain is matched against all hosts at once by a
// linear scan whose probes are prefetched, so their misses overlap: 2,048 blocks of 10 M in 0.2
// ms. The result is a hint: the worker that prefills acquires the blocks by their full 128-bit
// names.
//
// The table is split by key into 4,096 small ones with open addressing, so growing never stops
// the shard for long (one small table, by a quarter). Entries hold 64 bits of the key (keys are
// uniform and nobody can choose them) and up to kHostsInEntry hosts with a byte of tier bits
// each; the hosts of blocks that more hosts hold go to a side map. A forgotten host is gone at
// once (its number is dead); its entries are swept a small table at a time by later calls.
//
// Invariants: what a host is matched with is what its daemon held at the last event taken, or the
// part of a snapshot that has come. An entry exists while a host, or a dead number not yet swept,
// holds it. New blocks over `blocks_max` are not taken (counted): a shorter match.
// Units and shapes: 24 bytes an entry at load 0.64..0.8: 30 to 37.5 bytes a block with up to five
// hosts in two groups (history, window) and four tiers (device, host, disk, cluster).
// Errors: none; a stream that makes no sense is kResubscribe. Concurrency: const functions may run
// in several threads at once while nothing else does.
// Source: design.md sections 5, 6; docs/design/0005-kv-cache.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "domain/kv.h"
#include "domain/kv_messages.h"

namespace penstock::kvcache {

// A daemon, as the gateway numbers them.
using KvHostId = Id<struct KvHostTag>;

inline constexpr std::size_t kKvTiers = 5;  // values of KvTier; kPeer is never held

struct HostMatch {
  KvHostId host;
  std::uint32_t history = 0;  // leading blocks held, in any tiers
  // Leading blocks that are all in this tier or a faster one: [kDisk] counts host memory too.
  std::array<std::uint32_t, kKvTiers> leading{};
  // Of the `history` blocks, those whose fastest tier is this one; they add up to `history`.
  std::array<std::uint32_t, kKvTiers> fastest{};
  std::vector<std::uint32_t> windows{};  // depths < history with window state, ascending
};

struct KvMatch {
  std::vector<HostMatch> hosts;  // those that hold block 0, by host id
  std::uint32_t anywhere = 0;    // leading blocks that some host holds (hosts serve each other)
  std::vector<std::uint32_t> windows;  // depths < anywhere with window state on some host
};

class PrefixIndex {
 public:
  enum class Feed : std::uint8_t { kApplied, kResubscribe };
  static constexpr std::size_t kHostsInEntry = 5;

  explicit PrefixIndex(std::size_t blocks_max = std::size_t{1} << 28);

  // Takes a daemon's events. kResubscribe: an event is missing, the daemon is another run, or no
  // snapshot came first; the host is forgotten and the caller sends subscribe() again.
  Feed apply(KvHostId host, const kv::Events& events);
  // What to ask a daemon for: the event after the last one known, or a snapshot.
  kv::Subscribe subscribe(KvHostId host) const;
  // The daemon is gone.
  void forget(KvHostId host);

  // What the hosts hold of a chain, from depth 0. Costs 20 ns a block in cache, up to 100 at 10 M
  // blocks with small pages.
  KvMatch match(std::span<const BlockKey> keys) const;
  // Begins to fetch from memory what match() of these keys will look at.
  void prefetch(std::span<const BlockKey> keys) const;

  std::size_t blocks() const { return blocks_; }
  std::size_t hosts() const { return hosts_.size(); }
  // Memory of tables and side map, with their unused room.
  std::size_t memory_bytes() const;
  std::uint64_t dropped() const { return dropped_; }  // not taken: blocks_max

 private:
  // The number of one subscription of a host; a new snapshot gets a new one.
  using Feeder = std::uint16_t;
  struct Holder {
    Feeder feeder = 0;
    std::uint8_t tiers = 0;  // bits 0-3: history in device, host, disk, cluster; 4-7: window
  };
  struct Entry {
    std::uint64_t tag = 0;
    std::array<Feeder, kHostsInEntry> feeders{};
    std::array<std::uint8_t, kHostsInEntry> tiers{};  // 0: slot unused; used ones come first
    std::uint8_t more = 0;                            // 1: further holders in more_[tag]
    bool used() const { return tiers[0] != 0; }
  };
  static_assert(sizeof(Entry) == 24);
  struct Table {
    std::unique_ptr<Entry[]> entries;
    std::uint32_t size = 0;
    std::uint32_t used = 0;
  };
  struct Host {
    Feeder feeder = 0;
    std::uint64_t epoch = 0;
    std::uint64_t next = 0;  // number of the next event
    bool in_snapshot = true;
  };

  Table& table_of(std::uint64_t tag) { return tables_[tag >> kTagShift]; }
  const Entry* find(std::uint64_t tag) const;
  void prefetch(std::uint64_t tag) const;
  Entry* find_or_insert(std::uint64_t tag);
  void store(std::uint64_t tag, Holder holder);
  void remove(std::uint64_t tag, Holder holder);
  void set(Feeder feeder, const kv::Event& event);
  // Drops holders of nothing and dead ones, and moves those of the side map up. True: none is left.
  bool tidy(Entry& entry);
  static void place(Table& table, const Entry& entry);
  static void grow(Table& table);
  void erase(Table& table, std::uint32_t at);
  template <typename Visit>
  void visit_holders(const Entry& entry, const Visit& visit) const;
  Feeder new_feeder();
  void sweep_one_table();

  static constexpr unsigned kTagShift = 52;
  static constexpr std::size_t kTables = std::size_t{1} << (64 - kTagShift);

  std::size_t blocks_max_;
  std::size_t blocks_ = 0;
  std::uint64_t dropped_ = 0;
  std::vector<Table> tables_;
  std::unordered_map<std::uint64_t, std::vector<Holder>> more_;
  std::unordered_map<KvHostId, Host> hosts_;
  std::vector<KvHostId> feeder_hosts_;  // by number
  std::vector<bool> alive_;             // by number
  std::vector<Feeder> free_feeders_;    // numbers that no entry holds
  std::vector<Feeder> dead_feeders_;    // waiting for a sweep to start
  std::vector<Feeder> swept_feeders_;   // being swept
  std::size_t sweep_at_ = 0;
};

}  // namespace penstock::kvcache
