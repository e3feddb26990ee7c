// PrefixIndex: what every KV daemon holds, as a gateway knows it from their events.
//
// Each daemon (host) sends numbered events; apply() checks their order and asks for a new
// subscription when one is missing. A prompt's chain is matched against all hosts at once by a
// linear scan whose probes are prefetched, so their misses overlap: 2,048 blocks of 10 M in 0.2
// ms. The result is a hint: the worker that prefills acquires the blocks by their full 128-bit
// names.
//
// Who holds a block stands in a HolderTable, by 64 bits of its key (keys are uniform and nobody can
// choose them), with a byte of tier bits a host. A forgotten host is gone at once.
//
// Invariants: what a host is matched with is what its daemon held at the last event taken, or the
// part of a snapshot that has come, without tiers that it says are out of service. New blocks over
// `blocks_max` are not taken (counted): a shorter match.
// Units and shapes: 30 to 37.5 bytes a block with up to five hosts in two groups (history, window)
// and four tiers (device, host, disk, cluster).
// Errors: none; a stream that makes no sense is kResubscribe. Concurrency: const functions may run
// in several threads at once while nothing else does.
// Source: design.md sections 5, 6; docs/design/0005-kv-cache.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/kvcache/holder_table.h"
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

  std::size_t blocks() const { return table_.blocks(); }
  std::size_t hosts() const { return hosts_.size(); }
  std::size_t memory_bytes() const { return table_.memory_bytes(); }
  std::uint64_t dropped() const { return table_.dropped(); }  // not taken: blocks_max

 private:
  // Bits 0-3 of a holder: history in device, host, disk, cluster; 4-7: window.
  using Holder = HolderTable::Holder;
  struct Host {
    HolderTable::Feed feed = 0;  // of one subscription; a new snapshot gets a new one
    std::uint64_t epoch = 0;
    std::uint64_t next = 0;  // number of the next event
    bool in_snapshot = true;
  };

  void set(HolderTable::Feed feed, const kv::Event& event);

  HolderTable table_;
  std::unordered_map<KvHostId, Host> hosts_;
  std::vector<KvHostId> feed_hosts_;      // by number
  std::vector<std::uint8_t> feed_tiers_;  // by number: bits of a holder that are in service
};

}  // namespace penstock::kvcache
