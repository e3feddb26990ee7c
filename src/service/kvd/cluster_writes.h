// ClusterWrites: what of memory goes to the cluster tier, and when.
//
// A block that completes an extent is the last of its blocks to be stored, since ancestors come
// first: then the extent is put together from the blocks before it, as far as memory still has
// them. A block whose extent is not complete after `tail_delay` ends its chain, for now: it goes as
// an object of its own, and so does window state. When a hit used a chain whose extents the store
// turns out not to have (it was away, or they expired), they are offered again.
//
// Nothing of this holds a block or makes anyone wait: what leaves memory before its turn is not
// written now; the local disk keeps it, and its next use offers it again.
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

  // `tier` null: nothing is written.
  ClusterWrites(Holdings& holdings, ClusterTier* tier, Duration tail_delay)
      : holdings_(holdings), tier_(tier), tail_delay_(tail_delay) {}

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
  bool settled() const { return full_.empty() && tails_.empty() && under_way_ == 0; }
  std::size_t queued() const { return full_.size() + tails_.size(); }
  const ClusterWriteNumbers& numbers() const { return *numbers_; }

 private:
  std::uint32_t per_extent(HostBlock block) const;
  void write_extent(HostBlock last);
  void write_single(HostBlock block);
  template <typename Queue>
  void bound(Queue& queue);

  Holdings& holdings_;
  ClusterTier* tier_;
  Duration tail_delay_;
  bool hurried_ = false;
  std::deque<HostBlock> full_;                       // complete an extent
  std::deque<std::pair<Instant, HostBlock>> tails_;  // when their time is over
  std::unordered_set<BlockName> covered_;            // lately written in extents
  std::deque<BlockName> covered_order_;
  std::size_t under_way_ = 0;
  std::shared_ptr<ClusterWriteNumbers> numbers_ = std::make_shared<ClusterWriteNumbers>();
};

}  // namespace penstock::service
