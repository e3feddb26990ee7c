// ClusterTier: a BlockTier over a BlockStore that hosts share: extents, and single blocks for the
// rest of chains and for window state.
//
// What the store has is asked when a chain is acquired: look_up() asks for the chain's extents from
// the far end, in batches; those nearer to the root than one that is there are taken to be there,
// too, and the read verifies. Then it asks for the single blocks behind the last of them. What was
// found is remembered for `positive_life`; contains() looks there only.
//
// An extent is read whole, once for all its blocks that are wanted; it stays in its buffer while no
// other needs the room. Each block's slices are checked where they were copied to. A wrong byte is
// a miss, and the object is removed. An operation that takes longer than its limit is a miss
// (kTooSlow); a few of them in a row, or errors, open the breaker: the tier holds nothing until a
// probe has succeeded. So does a store that is not connected (kTierOff), at once.
//
// Writes put the name into the manifest of the class's current slice first, then the object, so
// that none is in no manifest: a crash in between leaves a name without an object, which is
// harmless. It costs no time but the first write's: a manifest takes all names that came while its
// last write was under way at once, and meanwhile the objects noted before are written. The slice
// noted with an object is the last it lives in: that of its last use plus its class's lifetime.
//
// Invariants: BlockTier's; nothing is called back but in poll(). Limits: bytes of read buffers (the
// store's stranded ones count), bytes of writes under way, names remembered. Errors: reasons.
// Concurrency: one thread. Source: docs/design/0013-cluster-tier.md; design.md section 6.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/kvcache/extent.h"
#include "port/block_store.h"
#include "port/block_tier.h"
#include "service/kvd/cluster_gc.h"
#include "service/kvd/cluster_known.h"
#include "service/kvd/store_breaker.h"

namespace penstock::service {

struct ClusterTierOptions {
  std::vector<TtlClassSpec> classes;
  std::vector<bool> written;                           // by class: its blocks are written through
  std::chrono::seconds slice = std::chrono::hours(6);  // the same for all hosts of a store
  Duration fetch_limit = std::chrono::milliseconds(500);  // of a read or look-up
  Duration write_limit = std::chrono::seconds(5);
  std::uint64_t read_bytes_max = std::uint64_t{64} << 20;
  // Of objects that are being noted or written: twice what `puts_max` extents have.
  std::uint64_t write_bytes_max = std::uint64_t{64} << 20;
  std::size_t puts_max = 16;  // objects being written at once
  std::size_t names_max = std::size_t{1} << 20;
  std::size_t known_max = std::size_t{1} << 18;  // blocks that gateways are told of
  Duration positive_life = std::chrono::seconds(30);
  StoreBreakerOptions breaker;
  std::string gc_owner;         // name of this host as a sweeper; empty: it sweeps nothing
  std::uint64_t bytes_max = 0;  // target of the whole store; 0: what it can hold
};

struct ClusterStats {
  std::uint64_t look_ups = 0, look_ups_slow = 0;
  std::uint64_t extents_read = 0, extents_written = 0, singles_read = 0, singles_written = 0;
  std::uint64_t touches = 0;
  std::uint64_t breaker_openings = 0;
  bool breaker_closed = true;
  std::uint64_t buffer_bytes = 0, write_bytes_under_way = 0;
  std::uint64_t told_blocks = 0;  // known to be there, as gateways were told
  StoreUse use;                   // of the whole store, as it said within the last minute or two
};

class ClusterTier final : public BlockTier {
 public:
  // `store` outlives it.
  ClusterTier(BlockStore& store, ClusterTierOptions options);

  struct ChainLookUp {
    std::span<const BlockKey> keys;          // of the whole chain
    std::span<const std::uint32_t> windows;  // depths at which window state is wanted, ascending
    std::size_t from = 0;                    // blocks before it are held elsewhere
    KvLayoutSpec layout;
  };
  // `done` with kNone when all is known that could be; kTooSlow when the store did not answer,
  // kTierOff when it is not connected.
  void look_up(const ChainLookUp& chain, TierNow now, std::function<void(MissReason)> done);

  bool contains(const BlockName& name) const override { return size_of(name).has_value(); }
  std::optional<std::uint32_t> size_of(const BlockName& name) const override;
  void read(TierRead read) override;
  // One block, as an object of its own.
  void write(TierWrite write) override;
  // A run of a chain, as one extent. The payloads are copied at once.
  void write_extent(std::span<const BlockInfo> blocks,
                    std::span<const std::span<const std::byte>> payloads,
                    std::function<void(MissReason)> done);
  // Whether a write of so many bytes would begin now.
  bool may_write(std::uint64_t bytes) const;
  bool is_written(TtlClass ttl_class) const {
    return ttl_class < options_.written.size() && options_.written[ttl_class];
  }
  // Moves the life of an object on, once a slice; `done` (may be empty) with kNeverStored when it
  // is not there.
  void touch_object(StoreName name, TtlClass ttl_class, TierNow now,
                    std::function<void(MissReason)> done);
  // Written or touched by this host in the current slice.
  bool noted(const StoreName& name) const { return noted_.contains(name.name); }
  // Ignored: see touch_object().
  void touch(std::span<const BlockName>, TtlClass, TierNow) override {}
  void remove(const BlockName& name, MissReason reason) override;
  void poll(TierNow now, std::vector<TierRemoval>& removals) override;
  int event_fd() const override { return store_.event_fd(); }
  // When it is to be polled at the latest.
  Instant next_deadline() const;
  void for_each(const std::function<bool(const BlockName&, std::uint32_t)>& visit) const override;
  // Blocks known to be there.
  std::size_t parts() const override { return known_.parts(); }
  void for_each_in(
      std::size_t part,
      const std::function<bool(const BlockName&, std::uint32_t)>& visit) const override {
    known_.for_each_in(part, visit);
  }
  std::vector<ClusterKnown::News> take_news() { return known_.take_news(); }
  TierStats stats() const override;
  // False while the breaker is open: nothing is loaded.
  bool in_service() const { return breaker_.closed(); }
  ClusterStats cluster_stats() const;
  ClusterGcNumbers gc_numbers() const { return gc_ ? gc_->numbers() : ClusterGcNumbers{}; }
  std::uint64_t bytes_max() const { return options_.bytes_max; }
  bool sweeps() const { return gc_.has_value(); }
  // Sweeps now what expiry and the target say, or with `dry_run` only counts it; `done` with the
  // run's numbers. False when one is asked for already. Precondition: sweeps().
  bool sweep(bool dry_run, std::function<void(const ClusterGcNumbers&)> done);

  static StoreName extent_object(const BlockName& last, std::uint32_t blocks);
  static StoreName single_object(const BlockName& name);

 private:
  using Done = std::function<void(MissReason)>;
  struct Object {
    StoreName name;
    std::uint64_t bytes = 0;
    bool is_gone = false;  // not to be read any more
  };
  struct Place {
    std::shared_ptr<Object> object;
    std::uint32_t block_bytes = 0;
    Instant until;
  };
  struct Fetch {
    StoreBuffer buffer;  // empty: waits for room
    std::shared_ptr<Object> object;
    std::optional<kvcache::Extent> extent;  // when it has arrived
    std::vector<TierRead> waiting;
    std::uint64_t used = 0;  // order of last use
  };
  struct Chain;  // a look-up under way
  struct Noting {
    StoreName name;
    std::function<void(MissReason)> then;  // kNone: it stands in the manifest
  };
  struct Notes {
    std::vector<Noting> waiting;
    bool is_writing = false;  // names that came before
    bool may_go() const { return !is_writing && !waiting.empty(); }
  };
  struct Put {
    StoreName name;
    StoreBuffer payload;
    TtlClass ttl_class = 0;
    Done done;
  };

  void ask_extents(const std::shared_ptr<Chain>& chain);
  void ask_singles(const std::shared_ptr<Chain>& chain);
  void ask(std::vector<StoreName> names,
           std::function<void(MissReason, std::vector<StoreFound>)> done);
  // `slice`: the last it lives in.
  void remember(const BlockName& name, const std::shared_ptr<Object>& object,
                std::uint32_t block_bytes, TimeSlice slice);
  static StoreBuffer make_buffer(std::size_t bytes);
  // `done`, with which these blocks are known when they were written.
  Done knowing(std::span<const BlockInfo> blocks, Done done);
  Instant end_of(TimeSlice slice) const;
  void ask_use();
  // Nothing is read from it any more; a corrupt one is removed.
  void discard(Object& object, MissReason reason);
  void start_fetches();
  bool make_room(std::uint64_t bytes);
  void arrived(const StoreName& name, MissReason reason, std::size_t bytes);
  void serve(Fetch& fetch, TierRead read);
  void fail(Fetch& fetch, MissReason reason);
  void put(Put put);
  void start_puts();
  void end_put(Put put, MissReason reason);
  void note(StoreName name, TtlClass ttl_class, Done then);
  void flush_notes();
  void poll_sweeps(TierNow now);
  ClusterGcOptions gc_options() const;
  // What became of an operation of the store, for the breaker.
  void judge(MissReason reason);
  MissReason closed_reason() const {
    return breaker_.is_off() ? MissReason::kTierOff : MissReason::kTooSlow;
  }
  void later(Done done, MissReason reason);
  void probe();
  TimeSlice slice_of(UnixSeconds wall) const;
  TimeSlice last_slice(TtlClass ttl_class) const;

  BlockStore& store_;
  ClusterTierOptions options_;
  StoreBreaker breaker_;
  std::optional<ClusterGc> gc_;
  struct Sweep {
    std::unique_ptr<ClusterGc> dry;  // null: gc_'s run
    ClusterGcNumbers before;
    std::function<void(const ClusterGcNumbers&)> done;
  };
  std::optional<Sweep> sweep_;  // asked for
  TierNow now_{};
  TimeSlice slice_ = 0;
  std::unordered_map<BlockName, Place> places_;
  ClusterKnown known_;
  Instant ask_use_at_{};
  StoreUse use_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for answers that come late
  std::deque<std::pair<Instant, BlockName>> fading_;            // when places end, in order
  std::map<StoreName, Fetch> fetches_;
  std::deque<StoreName> queue_;  // fetches that wait for room
  std::uint64_t buffer_bytes_ = 0;
  std::uint64_t write_bytes_ = 0;
  std::size_t under_way_ = 0;  // operations of the store
  std::uint64_t last_use_ = 0;
  std::unordered_set<std::string> noted_;  // in manifests of slice_
  std::map<ManifestId, Notes> notes_;
  std::deque<Put> puts_;  // noted, not being written yet
  std::size_t puts_under_way_ = 0;
  std::vector<std::pair<TierRead, BlockInfo>> served_;
  std::vector<std::pair<Done, MissReason>> ended_;
  TierStats stats_;
  ClusterStats cluster_;
};

}  // namespace penstock::service
