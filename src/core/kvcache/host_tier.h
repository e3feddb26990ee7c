// HostTier: which blocks the arena holds, where, who reads them, and which one goes next.
//
// A block is absent -> filling -> sealed -> retiring -> absent. begin_fill() gives a place and a
// handle; the handle is the filler's right to seal() it, and whoever finds that the filler failed
// retires it. Only sealed blocks are served: pin() counts readers, hold() counts I/O on the place.
// retire() makes a block and all its descendants invisible at once; their places become free when
// the last reader and the last I/O have let go. Entries form a forest by parent; a block that is
// stored while its parent is only in a lower tier hangs under an absent entry of the parent's name.
//
// make_room() evicts the block whose last use is longest ago among those without children, readers
// and I/O, so a block always goes after its descendants (the cache stays prefix-closed). Blocks of
// tenants above their share of the arena go first (kEvictedShare); a tenant that is alone may use
// everything. It reports what went before anything is written there. The place of a corrupt copy
// stays out of use until release_corrupt(), up to 1/64 of the arena (then the oldest such place is
// used again).
//
// Invariants: places of filling, sealed and retiring blocks and scratch places never overlap; a
// place with readers or I/O is never reused; every fill has a generation of its own, given before
// the first byte is written. Equal calls give equal outcomes.
// Units and shapes: bytes from outside, kArenaUnit inside. A window block's parent is the history
// block of the same key. Errors: none; misuse is a bug. Cost: O(log blocks).
// Concurrency: one thread. Source: docs/design/0005-kv-cache.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/units.h"
#include "core/kvcache/arena_space.h"
#include "domain/kv.h"

namespace penstock::kvcache {

enum class HostState : std::uint8_t { kAbsent, kFilling, kSealed, kRetiring };

// Names one fill of one block; stale once the block's place was given back.
struct HostBlock {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  auto operator<=>(const HostBlock&) const = default;
};

struct HostEntry {
  BlockInfo info;  // its slices are set by seal()
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t generation = 0;
  HostState state = HostState::kAbsent;
  bool corrupt = false;
  MissReason refused = MissReason::kNone;  // why the lower tier did not take it, when it did not
  std::uint32_t pins = 0;
  std::uint32_t holds = 0;
  std::uint32_t children = 0;  // filling or sealed blocks whose parent this is
  std::uint64_t tick = 0;      // order of last use
  Instant used_at;
};

struct HostRemoval {
  BlockName name;
  MissReason reason = MissReason::kNone;
  MissReason refused = MissReason::kNone;  // by the lower tier
  std::uint64_t bytes = 0;
  Duration idle{};  // since its last use
  TtlClass ttl_class = 0;
  std::uint64_t tenant = 0;
};
using HostRemovals = std::vector<HostRemoval>;

struct HostUsage {
  std::uint64_t blocks = 0;  // sealed
  std::uint64_t bytes = 0;   // of their payloads
  std::uint64_t filling = 0;
  std::uint64_t retiring = 0;  // invisible, but still read
  std::uint64_t pinned = 0;    // blocks with readers
  std::uint64_t corrupt_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t arena_bytes = 0;
};

struct HostRoot {
  std::uint64_t blocks = 0;  // sealed
  std::uint64_t bytes = 0;
};

struct HostAges {
  Duration oldest{};  // since the last use of the block unused longest, of those that may go
  Duration median{};  // of a sample of all
};

class HostTier {
 public:
  static constexpr double kTenantShareMax = 0.5;
  // `tenant_share_max` of the arena is for one tenant, when there are others.
  explicit HostTier(std::uint64_t arena_bytes, double tenant_share_max = kTenantShareMax);

  // The filling or sealed block of that name.
  std::optional<HostBlock> find(const BlockName& name) const;
  // False once the fill it names is over and its place given back.
  bool valid(HostBlock block) const;
  const HostEntry& at(HostBlock block) const;
  bool sealed(HostBlock block) const { return at(block).state == HostState::kSealed; }
  // The name that a block hangs under; none for the first block of a chain.
  static std::optional<BlockName> parent_of(const BlockInfo& info);

  // Evicts until `bytes` fit in one piece; false when what may go does not make enough room.
  bool make_room(std::uint64_t bytes, Instant now, HostRemovals& removals);
  // False when what is held contradicts it: its parent or its children lie at other depths or under
  // another root. Depths grow along every link, so entries never form a circle.
  bool consistent(const BlockInfo& info) const;
  // Takes a place for a block that is neither filling nor sealed; nullopt when nothing fits.
  // Precondition: consistent(info).
  std::optional<HostBlock> begin_fill(const BlockInfo& info, std::uint64_t bytes);
  // The bytes are in place and have these checksums. Precondition: filling.
  void seal(HostBlock block, std::vector<SliceSum> slices, Instant now);
  // Takes a filling or sealed block and its descendants (reason kParentGone) out of sight. Sealed
  // ones are appended to `removals`, descendants first.
  void retire(HostBlock block, MissReason reason, Instant now, HostRemovals& removals);
  // The same for what hangs under an absent block that is gone from the lower tiers too.
  void retire_orphans(const BlockName& absent, Instant now, HostRemovals& removals);

  void pin(HostBlock block);  // precondition: sealed
  void unpin(HostBlock block);
  void hold(HostBlock block);
  void unhold(HostBlock block);
  // The lower tier's answer when the block was offered.
  void set_refused(HostBlock block, MissReason reason) { node(block).entry.refused = reason; }
  // All blocks of one use get one tick.
  std::uint64_t next_tick() { return ++last_tick_; }
  void touch(HostBlock block, std::uint64_t tick, Instant now);

  // A place for bytes that are not a block (what `verify` reads); returns its offset.
  std::optional<std::uint64_t> take_scratch(std::uint64_t bytes);
  void give_scratch(std::uint64_t offset, std::uint64_t bytes);
  // Puts the places of corrupt copies back into use; returns their bytes.
  std::uint64_t release_corrupt();

  // Slots are numbered [0, slots()); a walk over them visits every block that stays meanwhile.
  std::size_t slots() const { return nodes_.size(); }
  std::optional<HostBlock> sealed_in_slot(std::size_t slot) const;
  // What is held of each root, of those with anything.
  const std::map<BlockKey, HostRoot>& roots() const { return roots_; }
  // Absent names under which blocks hang; O(such names).
  std::vector<BlockName> absent_parents() const;
  HostUsage usage() const;
  std::uint64_t look_ups() const { return look_ups_; }  // calls of find()
  HostAges ages(Instant now) const;                     // looks at 1,024 blocks at most
  // Checks the invariants, for tests; O(blocks log blocks).
  void check() const;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Node {
    HostEntry entry;
    std::uint32_t parent = kNone;
    std::uint32_t first_child = kNone;
    std::uint32_t next = kNone;  // sibling
    std::uint32_t previous = kNone;
    bool evictable = false;  // stands in its tenant's evictable
  };
  // Oldest use first, of one use the deepest first.
  using EvictionKey = std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>;
  struct Tenant {
    std::uint64_t units = 0;  // of its filling and sealed blocks
    std::set<EvictionKey> evictable;
  };

  Node& node(HostBlock block);
  EvictionKey eviction_key(std::uint32_t slot) const;
  std::uint32_t take_slot();
  void link(std::uint32_t slot);
  void unlink(std::uint32_t slot);
  void refresh(std::uint32_t slot);  // becomes evictable, or stops being so
  void set_evictable(std::uint32_t slot, bool evictable);
  // Changes a tenant and puts what it would lose next among the victims again.
  template <typename Change>
  void change_tenant(std::uint64_t tenant, Change change);
  bool above_share(const Tenant& tenant) const;
  std::set<EvictionKey>& victims(const Tenant& tenant);
  void collect(std::uint32_t slot, std::vector<std::uint32_t>& subtree) const;
  void remove(std::uint32_t slot, MissReason reason, Instant now, HostRemovals& removals);
  void finish(std::uint32_t slot);  // gives the place back when nobody uses it
  void free_slot(std::uint32_t slot);
  void keep_corrupt(std::uint64_t first, std::uint64_t units);

  ArenaSpace space_;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> free_slots_;
  std::unordered_map<BlockName, std::uint32_t> index_;  // filling, sealed, absent with children
  std::uint64_t tenant_units_max_;
  std::unordered_map<std::uint64_t, Tenant> tenants_;  // those that hold something
  std::uint64_t held_units_ = 0;                       // by all tenants
  // The first evictable block of each tenant, of those above their share and of the others.
  std::set<EvictionKey> victims_above_;
  std::set<EvictionKey> victims_within_;
  std::set<std::uint32_t> absent_;  // slots
  std::map<BlockKey, HostRoot> roots_;
  std::deque<std::pair<std::uint64_t, std::uint64_t>> corrupt_;  // first unit, units
  std::uint64_t corrupt_units_ = 0;
  std::uint64_t last_tick_ = 0;
  std::uint64_t last_generation_ = 0;
  mutable std::uint64_t look_ups_ = 0;
  HostUsage counts_;  // the part that is counted as it changes
};

}  // namespace penstock::kvcache
