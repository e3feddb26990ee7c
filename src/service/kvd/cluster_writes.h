// ClusterWrites: what of memory goes to the cluster tier, and when.
//
// A block that completes an extent is the last of its blocks to be stored, since ancestors come
// first: then the extent is put together from the blocks before it, as far as memory still has
// them. A block whose extent is not complete after `tail_delay` ends its chain, for now: it goes as
// an object of its own, and so does window state. When a hit used a chain whose extents the store
// turns out not to have (it was away, or they expired), they are offered again. Where a hit ends in
// the middle of an extent that another prompt goes on in, a prefix is shared that no extent ends
// with (a system prompt): its blocks in that extent go as single ones, too.
//
// Nothing of this holds a block or makes anyone wait. While the store takes nothing, or many wait,
// what is next goes to the spill, as far as that has room (cluster_spill.h). What leaves memory
// before its turn is not written now: its next use offers it again.
//
// Invariants: an extent or a few single blocks are copied a turn; queues are bounded, the oldest
// goes. Concurrency: one thread. Source: docs/design/0013-cluster-tier.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "service/kvd/cluster_spill.h"
#include "service/kvd/cluster_tier.h"
#include "service/kvd/holdings.h"

namespace penstock::service {

struct ClusterWriteNumbers {
  std::uint64_t blocks = 0;   // stored in the cluster
  std::uint64_t bytes = 0;    // of them
  std::uint64_t gone = 0;     // left memory before their turn
  std::uint64_t dropped = 0;  // too many waited
  ReasonCounts ended{};       // objects; kNone: stored
};

class ClusterWrites {
 public:
  static constexpr std::size_t kQueuedMax = std::size_t{1} << 16;
  static constexpr std::size_t kBehind = 256;      // so many wait: the store is too slow
  static constexpr double kSpillShareMax = 0.125;  // of the disk

  // `tier` null: nothing is written.
  ClusterWrites(Holdings& holdings, WriteThrough& writes, ClusterTier* tier, Duration tail_delay);

  // A block was sealed, or is used again.
  void offer(HostBlock block, Instant now);
  // A hit used these blocks: a path from the root, window state behind it.
  void used(std::span<const BlockName> path, TtlClass ttl_class, TierNow now);
  // Starts what the tier takes now.
  void work(TierNow now);
  bool has_work(Instant now) const;
  // Tails wait no longer (for an orderly stop).
  void hurry() { hurried_ = true; }
  // False when the store answers nothing.
  bool may_go_on() const { return tier_ != nullptr && tier_->may_write(0); }
  bool settled() const {
    return full_.empty() && tails_.empty() && under_way_ == 0 && spill_.items() == 0;
  }
  std::size_t queued() const { return full_.size() + tails_.size(); }
  const ClusterSpill& spill() const { return spill_; }
  const ClusterWriteNumbers& numbers() const { return *numbers_; }

 private:
  struct Tail {
    Instant due;
    HostBlock block;
    bool is_shared = false;  // written even if an extent has it
  };

  std::uint32_t per_extent(HostBlock block) const;
  // Whether chains go on behind it in memory.
  bool goes_on(HostBlock block) const;
  void offer_shared(std::span<const BlockName> end, Instant now);
  // Bytes of what would be written; 0: it left memory.
  std::uint64_t need(HostBlock block, std::uint32_t count) const;
  bool must_spill(std::uint64_t bytes) const;
  bool is_ready(std::uint64_t bytes) const;
  bool extent_is_ready() const;
  bool tail_is_ready(Instant now) const;
  // The blocks that end with `last`, ancestors first; empty: not all are in memory.
  std::vector<HostBlock> extent_of(HostBlock last);
  void cover(const BlockName& name);
  void write_extent(HostBlock last);
  void write_single(const Tail& tail);
  template <typename Queue>
  void bound(Queue& queue);

  Holdings& holdings_;
  ClusterTier* tier_;
  Duration tail_delay_;
  bool hurried_ = false;
  std::deque<HostBlock> full_;             // complete an extent
  std::deque<Tail> tails_;                 // by due
  std::unordered_set<BlockName> covered_;  // lately written in extents
  std::deque<BlockName> covered_order_;
  std::size_t under_way_ = 0;
  ClusterSpill spill_;
  std::shared_ptr<ClusterWriteNumbers> numbers_ = std::make_shared<ClusterWriteNumbers>();
};

}  // namespace penstock::service
