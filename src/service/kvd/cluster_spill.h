// ClusterSpill: what the cluster store does not take in time, kept on the local disk until it does.
//
// An item is what goes as one object: the blocks of an extent, or one block. add() hands its blocks
// to the disk whatever their use, so that memory may evict them. When the store takes writes again
// the oldest item is put together, each block from memory or else read from the disk, and written.
// One item at a time has a buffer.
//
// Invariants: at most `bytes_max` of blocks wait here (more are refused: a later use offers them
// again); a block that is nowhere any more ends its item. Nobody waits for any of it.
// Concurrency: one thread. Source: docs/design/0013-cluster-tier.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "service/kvd/cluster_tier.h"
#include "service/kvd/write_through.h"

namespace penstock::service {

struct ClusterSpillNumbers {
  std::uint64_t added = 0;    // items
  std::uint64_t written = 0;  // to the store
  std::uint64_t lost = 0;     // a block was neither in memory nor on disk
};

class ClusterSpill {
 public:
  using Written = std::function<void(std::uint64_t blocks, std::uint64_t bytes)>;

  // `written` is told of what came to the store. `tier` null, or no disk: nothing is accepted.
  ClusterSpill(Holdings& holdings, WriteThrough& writes, ClusterTier* tier, double disk_share_max,
               Written written);

  bool accepts(std::uint64_t bytes) const { return bytes_ + bytes <= bytes_max_; }
  // Blocks of one object, ancestors first. Precondition: they are sealed in memory; accepts().
  void add(std::span<const HostBlock> blocks);
  // Whether work() would get on.
  bool has_work() const;
  void work();
  std::size_t items() const { return items_.size() + (job_ ? 1 : 0); }
  std::uint64_t bytes() const { return bytes_; }
  const ClusterSpillNumbers& numbers() const { return numbers_; }

 private:
  struct Item {
    std::vector<BlockName> names;
    std::uint64_t block_bytes = 0;
    std::uint64_t bytes() const { return names.size() * block_bytes; }
  };
  struct Job;  // an item being put together; outlives this while the disk reads into it

  void begin();
  void end(bool is_lost);

  Holdings& holdings_;
  WriteThrough& writes_;
  ClusterTier* tier_;
  Written written_;
  std::uint64_t bytes_max_ = 0;
  std::uint64_t bytes_ = 0;  // of items
  std::deque<Item> items_;
  std::shared_ptr<Job> job_;
  ClusterSpillNumbers numbers_;
};

}  // namespace penstock::service
