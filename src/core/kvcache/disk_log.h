// DiskLog: the policy of the disk tier: what is written, where, how long it stays, what goes first.
//
// The disk is a log of equal segments. Each TTL class has one open segment at a time, for the time
// slice that runs (an eighth of the class's lifetime); when it is full or the slice is over it is
// sealed. A segment expires as a whole at slice end + lifetime. A hit marks its blocks with the
// class that used them when they would expire too early for it, and counts their heat.
//
// When a segment expires, or is the one worth least and space is needed, reclaim() takes it apart:
// marked blocks (and, on eviction, all that were hit) are kept for re-insertion, ancestors first,
// up to a fifth of a segment; the rest is dropped with a reason (expired: not used since; evicted:
// there was no room to keep it). Worth is the sum over blocks of
// cost to compute again (grows with depth) x likelihood of reuse (grows with heat; three quarters
// of blocks are used once) and falls with the time since the segment's last hit. Blocks of tenants
// above their share are worth nothing.
//
// Admission: classes that say so; names seen before (written or hit; a bounded table remembers);
// extensions of a parent that is here and was hit.
//
// Descendants of a missing block stay until their segment goes: a match walks from the root and
// never reaches them, so they cost space, not correctness. The index has no parent (16 bytes more a
// block would be needed); re-insertion reads the record anyway and drops a block whose parent is
// gone, with kParentGone.
//
// Invariants: a block that find() returns lies in a segment that is not clean; a segment becomes
// clean only when no block points into it; at most one open segment per class; re-insertion never
// waits (no clean segment: the block is dropped), so reclaim always progresses.
// Units and shapes: units of 4 KiB; wall time as UnixSeconds. Removals are appended to the list
// that take_removals() gives. Errors: MissReason. Concurrency: one thread.
// Source: design.md section 6; docs/protocol/kv-segments.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/kvcache/disk_index.h"
#include "core/kvcache/seen_names.h"
#include "core/kvcache/segment_format.h"

namespace penstock::kvcache {

struct DiskClass {
  TtlClassSpec spec;
  bool admit_always = false;  // no second use needed (agent)
};

struct DiskLogOptions {
  std::uint32_t segment_units = kSegmentUnitsMax;
  std::uint32_t segments = 0;      // at least segments_min()
  std::vector<DiskClass> classes;  // 1 to kMarksMax; 0 is the default
  std::uint32_t clean_min = 2;     // segments kept ready; one of them for re-insertion only
  double reinsert_share_max = 0.2;
  double tenant_share_max = 0.5;  // of the capacity, once space is short
  std::size_t seen_names = std::size_t{1} << 20;
  std::uint64_t epoch_seed = 0;  // drawn by the process; epochs of segments follow from it
};

enum class SegmentState : std::uint8_t { kClean, kOpen, kSealing, kSealed, kReclaiming, kBad };

struct DiskReinsert {
  BlockName name;
  DiskPlace from;
  std::uint32_t record_units = 0;
  TtlClass ttl_class = 0;
};

struct DiskReclaim {
  std::uint32_t segment = 0;
  MissReason reason = MissReason::kNone;
  std::vector<DiskReinsert> keep;  // ancestors first
};

struct DiskRemoval {
  BlockName name;
  MissReason reason;
  TtlClass ttl_class = 0;    // of the segment it lay in
  std::uint64_t tenant = 0;  // 0 too: of one of those that found no slot
};

// What the log holds, for people. A block is as old as the last use of anything in its segment.
struct DiskUse {
  struct Class {
    std::uint64_t blocks = 0;
    std::uint64_t bytes = 0;
    std::uint64_t segments = 0;
  };
  struct Tenant {
    TtlClass ttl_class = 0;
    std::uint64_t tenant = 0;
    std::uint64_t blocks = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<Class> classes;
  std::vector<Tenant> tenants;   // by class and tenant, in order; only those that hold blocks
  std::int64_t oldest_idle = 0;  // seconds
  std::int64_t median_idle = 0;  // seconds; half of the blocks lie in segments used later
};

class DiskLog {
 public:
  explicit DiskLog(DiskLogOptions options);
  static std::uint32_t segments_min(const DiskLogOptions& options);

  const DiskSlot* find(const BlockName& name) const { return index_.find(name); }
  // kNone: write it. Else kNotAdmitted or kEvictedShare. Remembers the name.
  MissReason admit(const BlockInfo& info);

  enum class Purpose : std::uint8_t { kWrite, kReinsert };
  struct Placed {
    DiskPlace place;
    bool opened = false;  // the segment was clean: its header must be written first
  };
  // Whether a record of this size fits into an empty segment.
  bool fits(std::uint64_t record_units) const { return record_units + 3 <= options_.segment_units; }
  // Reserves room in the class's open segment; nullopt: no clean segment. Precondition: fits().
  std::optional<Placed> place(TtlClass ttl_class, std::uint32_t record_units, UnixSeconds now,
                              Purpose purpose);
  // The record is on disk: the block can be found. Precondition: its name is not there.
  void publish(const BlockInfo& info, std::uint32_t header_units, DiskPlace place);
  // The same for a block that was kept; false when it was removed from `from` since.
  bool move(const BlockName& name, DiskPlace from, DiskPlace to);

  // Segments that are full, or whose slice is over: write the footer, then call sealed().
  std::vector<std::uint32_t> take_seals(UnixSeconds now);
  // No more records go into an open segment (a write failed).
  void close(std::uint32_t segment);
  void sealed(std::uint32_t segment);

  void touch(std::span<const BlockName> path, TtlClass ttl_class, UnixSeconds now);
  void remove(const BlockName& name, MissReason reason);
  // Removes it if it still lies there.
  void drop(const BlockName& name, DiskPlace from, MissReason reason);
  // Removes all of a segment's blocks and never uses it again (until revive()).
  void mark_bad(std::uint32_t segment, MissReason reason);
  void revive(std::uint32_t segment);

  // The next segment to take apart: expired, or needed; nullopt when there is none.
  std::optional<DiskReclaim> reclaim(UnixSeconds now);
  // Precondition: no block points into it, nothing reads it.
  void cleaned(std::uint32_t segment);
  std::uint32_t live_blocks(std::uint32_t segment) const { return segments_[segment].blocks; }
  bool space_short() const { return clean_ <= options_.clean_min; }

  // What the footer says: the blocks that are there, with their marks and heat.
  std::vector<DirectoryEntry> directory_of(std::uint32_t segment);
  Trailer trailer_of(std::uint32_t segment, std::size_t records) const;
  // A sealed segment whose footer has not told for a minute that its blocks are used (a mark, a
  // first hit); it is to be written again.
  std::optional<std::uint32_t> take_old_footer(UnixSeconds now);

  // Recovery, before anything else: a segment that holds records; then its records. Of two copies
  // of a block the one of the later sequence is kept. False: expired so long ago that no mark can
  // matter, do not read it. Of an expired segment the blocks with a mark that lasts are kept;
  // `classes` are those of the trailer.
  bool restore_segment(std::uint32_t segment, const SegmentHeader& header, UnixSeconds now);
  // Starts to load what restore() of this name will look at: some names ahead, it hides memory's
  // latency.
  void prefetch(const BlockName& name) const { index_.prefetch(name); }
  void reserve(std::size_t blocks) { index_.reserve(blocks); }  // before the first restore()
  void restore(std::uint32_t segment, const DirectoryEntry& entry, UnixSeconds now,
               std::span<const std::uint64_t> classes = {});
  bool expired(std::uint32_t segment, UnixSeconds now) const {
    return expires(segments_[segment]) <= now.value;
  }
  // Ends it: sealed, or open again with this many units used when its class has no open segment
  // and its slice runs. Returns the state.
  SegmentState restored(std::uint32_t segment, std::uint32_t used_units, bool has_footer,
                        UnixSeconds now);

  SegmentHeader header_of(std::uint32_t segment) const;
  std::uint64_t epoch_of(std::uint32_t segment) const { return segments_[segment].epoch; }
  SegmentState state_of(std::uint32_t segment) const { return segments_[segment].state; }
  std::uint32_t used_units(std::uint32_t segment) const { return segments_[segment].used_units; }

  // Removals since the last call.
  std::vector<DiskRemoval> take_removals();
  // Removes some blocks (all, over several calls); true when none is left.
  bool empty_some(MissReason reason);
  void for_each(const std::function<bool(const BlockName&, std::uint32_t)>& visit) const;
  // Those of one shard of the index; false when `visit` stopped it.
  bool for_each_in(std::size_t shard,
                   const std::function<bool(const BlockName&, std::uint32_t)>& visit) const;

  std::uint64_t blocks() const { return index_.size(); }
  std::uint64_t bytes_used() const { return bytes_; }
  std::size_t memory_bytes() const;  // index, lists of segments, names seen
  std::uint32_t clean_segments() const { return clean_; }
  DiskUse use(UnixSeconds now) const;  // walks the segments

 private:
  struct TenantPart {
    std::uint32_t tenant = 0;
    std::uint32_t blocks = 0;
    std::uint64_t bytes = 0;
    std::uint64_t worth = 0;
  };
  struct Segment {
    SegmentState state = SegmentState::kClean;
    TtlClass ttl_class = 0;
    std::uint32_t used_units = 0;
    std::uint32_t blocks = 0;  // live
    std::uint32_t records = 0;
    std::uint64_t epoch = 0;
    std::uint64_t sequence = 0;
    std::int64_t slice_end = 0;
    std::int64_t last_use = 0;
    bool footer_old = false;            // its blocks were used since it was written
    std::vector<std::uint32_t> hashes;  // of every block ever put there
    std::vector<TenantPart> parts;      // of the live ones
  };
  struct Tenant {
    std::uint64_t name = 0;
    std::uint64_t bytes = 0;  // of its records
    std::uint64_t blocks = 0;
  };

  std::int64_t ttl(TtlClass ttl_class) const {
    return options_.classes[ttl_class].spec.ttl.count();
  }
  std::int64_t slice(TtlClass ttl_class) const;
  std::int64_t expires(const Segment& segment) const {
    return segment.slice_end + ttl(segment.ttl_class);
  }
  TtlClass known(TtlClass ttl_class) const {
    return ttl_class < options_.classes.size() ? ttl_class : TtlClass{0};
  }
  bool has_room(const Segment& segment, std::uint32_t record_units) const;
  bool over_share(std::uint32_t tenant) const;
  std::uint32_t tenant_slot(std::uint64_t name);
  void count(const DiskSlot& slot, int sign);
  void attach(const DiskSlot& slot);
  void note_removal(const DiskSlot& slot, MissReason reason);
  void erase(DiskSlot* slot, MissReason reason);
  TtlClass class_named(std::uint64_t name) const;
  std::vector<DiskSlot> blocks_of(std::uint32_t segment);
  // Worth of tenants within their share, and of the others. Smaller goes first.
  struct Score {
    double within = 0;
    double above = 0;
    auto operator<=>(const Score&) const = default;
  };
  Score score(const Segment& segment, UnixSeconds now) const;
  std::optional<std::uint32_t> victim(UnixSeconds now, MissReason& reason) const;

  DiskLogOptions options_;
  DiskIndex index_;
  SeenNames seen_;
  std::vector<Segment> segments_;
  std::vector<std::optional<std::uint32_t>> open_;  // by class
  std::vector<std::uint32_t> seals_;
  std::deque<std::pair<std::int64_t, std::uint32_t>> old_footers_;  // since when, which segment
  std::vector<DiskRemoval> removals_;
  std::vector<Tenant> tenants_;  // slot 0: all that found no slot
  std::unordered_map<std::uint64_t, std::uint32_t> tenant_slots_;
  std::uint64_t bytes_ = 0;  // payloads of live blocks
  std::uint64_t held_ = 0;   // their records
  std::uint64_t sequence_ = 0;
  std::uint32_t clean_ = 0;
  bool evicting_others_ = false;  // the last victim held worth of tenants within their share
  std::size_t emptying_ = 0;      // shard of empty_some()
};

}  // namespace penstock::kvcache
