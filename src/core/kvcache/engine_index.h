// EngineIndex: which ranks of engines hold which leading part of a prompt, in which tiers.
//
// A source is what says so for one rank: a publisher of KV events (EngineHoldings gives the
// changes), or, where an engine has none, this gateway's own placements (placed()). Both fill one
// HolderTable. A prompt is matched by its routing keys against all sources at once: depths are
// tried by doubling and then halved between, so a prompt of 8,192 units costs some twenty probes.
//
// Placements age in generations, up to four a source; a prompt that is placed again moves to the
// newest. When an engine reports fewer cached tokens than were predicted, it has evicted blocks of
// the generation in which the first missing one was last used, and so, since engines evict what was
// used longest ago, everything older: those generations are forgotten.
//
// Invariants: what a source holds is taken to be closed under prefixes, as engines' eviction from
// the tail makes it; where it is not, a match ends at a depth that is held and whose successor is
// not. Full (bytes_max): new blocks are not taken (counted), the oldest placements go first.
// Units and shapes: tokens. Errors: none. Concurrency: const functions may run in several threads
// at once, each with a Scratch of its own, while nothing else does.
// Source: design.md sections 5 and 7; docs/kv-events.md.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/units.h"
#include "core/kvcache/engine_holdings.h"
#include "core/kvcache/holder_table.h"
#include "core/kvcache/routing_chain.h"

namespace penstock::kvcache {

// A rank of a worker, as placement names it.
struct RankOfWorker {
  WorkerId worker;
  std::uint32_t rank = 0;
  auto operator<=>(const RankOfWorker&) const = default;
};

// What one rank holds of a prompt: leading tokens that are in this tier or a faster one.
struct RankMatch {
  RankOfWorker rank;
  std::uint32_t device = 0;
  std::uint32_t host = 0;
  std::uint32_t any = 0;  // disk and cluster too
  bool operator==(const RankMatch&) const = default;
};

class EngineIndex {
 public:
  using SourceId = std::uint32_t;
  static constexpr std::size_t kGenerations = 4;

  // Of a thread that matches; its memory is reused.
  struct Scratch {
    struct Item {
      std::uint32_t source = 0;
      HolderTable::Feed feed = 0;
      std::uint8_t level = 0;
      std::uint32_t depth = 0;
    };
    std::vector<Item> items;
    std::vector<std::uint8_t> held;  // by feed: bits at the place last probed
    std::vector<HolderTable::Feed> touched;
    std::vector<RankMatch> result;
  };

  explicit EngineIndex(std::size_t bytes_max)
      : bytes_max_(bytes_max), table_(blocks_max(bytes_max)) {}

  SourceId add(RankOfWorker rank);
  void remove(SourceId source);
  // It holds nothing: engine restarted, events lost, cache cleared. O(1).
  void purge(SourceId source);

  // --- by events
  void apply(SourceId source, std::span<const HoldingChange> changes);
  // EngineHoldings::stride(); nothing is matched for a source before.
  void set_stride(SourceId source, std::uint32_t tokens);

  // --- by placements
  // The prompt has been sent there: it will hold it. `stride` as above.
  void placed(SourceId source, std::span<const RoutingKey> keys);
  // The engine had this many of the prompt's tokens, and more had been predicted.
  void corrected(SourceId source, std::span<const RoutingKey> keys, std::uint32_t cached_tokens);
  // A part (1 / (kGenerations - 1)) of the placements' time-out has passed: begins a generation and
  // forgets the oldest.
  void age(SourceId source);

  // What ranks hold of the prompt whose routing keys these are, by rank; those that hold nothing
  // are left out. Valid until the scratch is used again.
  std::span<const RankMatch> match(std::span<const RoutingKey> keys, Scratch& scratch) const;

  std::size_t blocks() const { return table_.blocks(); }
  std::size_t memory_bytes() const { return table_.memory_bytes(); }
  std::size_t bytes_max() const { return bytes_max_; }
  std::uint64_t dropped() const { return table_.dropped(); }
  std::size_t sources() const { return sources_.size(); }

 private:
  struct Source {
    RankOfWorker rank;
    std::uint32_t stride = 0;
    // The newest first. Events use one.
    std::vector<HolderTable::Feed> feeds;
  };
  // Holders take 37.5 bytes a block at most, and EngineHoldings 23 of each holder.
  static std::size_t blocks_max(std::size_t bytes) { return bytes / 64 + 1; }

  void begin_generation(Source& source);
  void drop_oldest(Source& source);
  void make_room(Source& source, std::size_t blocks);
  void probe(RoutingKey key, Scratch& scratch) const;
  void match_stride(std::uint32_t stride, std::span<const RoutingKey> keys, Scratch& scratch) const;
  using Items = std::span<Scratch::Item>;
  void halve(std::uint32_t units, std::span<const RoutingKey> keys, Items items, std::uint32_t held,
             std::uint32_t missing, Scratch& scratch) const;

  std::size_t bytes_max_;
  HolderTable table_;
  std::map<SourceId, Source> sources_;
  SourceId next_source_ = 1;
};

}  // namespace penstock::kvcache
