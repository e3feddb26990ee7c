// Loads: reads from the lower tiers into the arena, one per block however many wait for it.
//
// A load has no owner among the sessions: whoever asked first may die, the load goes on for the
// others, and when nobody waits any more it still ends as a sealed block for later users. The place
// is held for the I/O until the tier has reported, whatever happens meanwhile.
//
// Invariants: a block is sealed only when the tier verified it and its record says that it is the
// block that was asked for, at that place of that chain; otherwise it is discarded with what hangs
// under it. A read starts in a later turn than the evictions that made its room.
// Concurrency: one thread. Source: facts 7d rules 2 and 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/kvcache/load_model.h"
#include "service/kvd/holdings.h"

namespace penstock::service {

// One of the blocks that a lease waits for.
struct LoadWaiter {
  kv::SessionId session;
  kv::LeaseId lease = 0;
  KvGroup group = KvGroup::kHistory;
  std::size_t index = 0;  // of the lease's history or windows
};

struct LoadEnded {
  HostBlock block;  // sealed when reason is kNone, else no longer to be used
  MissReason reason = MissReason::kNone;
  std::vector<LoadWaiter> waiters;
};

class Loads {
 public:
  // `model` learns how fast each tier delivers.
  Loads(Holdings& holdings, KvStatistics& statistics, kvcache::LoadModel& model,
        std::size_t in_flight_max)
      : holdings_(holdings),
        statistics_(statistics),
        model_(model),
        in_flight_max_(in_flight_max) {}

  bool full() const { return loads_.size() >= in_flight_max_; }
  std::size_t in_flight() const { return loads_.size(); }
  // Starts to load a block that a lower tier has and memory has not, or says why not. Precondition:
  // !full().
  std::expected<HostBlock, MissReason> load(const BlockInfo& info, TierNow now);
  // Precondition: `block` is being loaded.
  void wait(HostBlock block, LoadWaiter waiter);
  // Where it comes from. Precondition: `block` is being loaded.
  KvTier from(HostBlock block) const;
  // Bytes of the loads under way.
  kvcache::TierBytes bytes_under_way() const;
  // Hands new reads to the tier.
  bool unsubmitted() const { return !unsubmitted_.empty(); }
  void submit();
  // Takes what the tier has reported since.
  std::vector<LoadEnded> finish(TierNow now);

 private:
  struct Report {
    HostBlock block;
    MissReason reason;
    BlockInfo info;
  };
  struct Load {
    KvTier from = KvTier::kDisk;
    std::vector<LoadWaiter> waiters;
  };
  // Of one tier.
  struct Flow {
    std::size_t loads = 0;        // under way
    std::uint64_t under_way = 0;  // bytes of them
    Instant busy_since{};         // while there are some: since then, or since the last ones ended
    std::uint64_t bytes = 0;      // that came in this turn
  };
  // Outlives the object while a tier may still report.
  using Reports = std::vector<Report>;

  MissReason judge(const Report& report) const;

  Holdings& holdings_;
  KvStatistics& statistics_;
  kvcache::LoadModel& model_;
  std::size_t in_flight_max_;
  std::map<HostBlock, Load> loads_;
  std::map<KvTier, Flow> flows_;
  std::vector<HostBlock> unsubmitted_;
  std::shared_ptr<Reports> reports_ = std::make_shared<Reports>();
};

}  // namespace penstock::service
