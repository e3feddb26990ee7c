// WriteThrough: blocks on their way from the arena to the disk.
//
// A block is offered when it was stored and again when it was used (the disk admits on second use;
// that is its decision). Offers wait in a queue without keeping the block: what is evicted before
// its turn is not written. While a write is under way the I/O holds the place.
//
// Invariants: at most kWritesInFlightMax places and an eighth of the arena are held (but always one
// block), so that a slow disk does not fill memory; one write of a block at a time; "stored
// on disk" is told after the write is durable. Concurrency: one thread.
// Source: docs/design/0005-kv-cache.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "service/kvd/holdings.h"

namespace penstock::service {

class WriteThrough {
 public:
  static constexpr std::size_t kWritesInFlightMax = 256;
  static constexpr std::size_t kQueuedMax = std::size_t{1} << 16;  // then the oldest is dropped

  WriteThrough(Holdings& holdings, KvStatistics& statistics)
      : holdings_(holdings), statistics_(statistics) {}

  enum class Admission : std::uint8_t { kByUse, kAlways };
  void offer(HostBlock block, Admission admission = Admission::kByUse);
  // Starts writes while there is room in flight.
  void start();
  // Takes what the disk has reported since.
  void finish();
  bool settled() const { return queue_.empty() && in_flight_.empty(); }
  std::size_t queued() const { return queue_.size(); }
  std::size_t in_flight() const { return in_flight_.size(); }

 private:
  // Outlives the object while the disk may still report.
  using Reports = std::vector<std::pair<HostBlock, MissReason>>;

  bool may_start() const;

  Holdings& holdings_;
  KvStatistics& statistics_;
  std::deque<std::pair<HostBlock, Admission>> queue_;
  std::set<HostBlock> in_flight_;
  std::uint64_t held_bytes_ = 0;  // of them
  std::shared_ptr<Reports> reports_ = std::make_shared<Reports>();
};

}  // namespace penstock::service
