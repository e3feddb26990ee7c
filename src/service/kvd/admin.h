// Admin: the commands of `penstock kv`, answered in JSON.
//
//   stat                               numbers of every tier, class and tenant
//   ls      {after, limit, details}    roots: scope, build, what memory holds; the disk's sum
//   ls      {root, first, limit, details}
//                                      blocks of one root in memory
//   explain {request}                  what that request's acquires got, and why not more
//   verify  {tier: host|disk|all}      reads every block and compares it with its checksums
//   gc      {dry_run}                  drops blocks whose ancestors are gone, puts the places of
//                                      corrupt copies back into use, sweeps the cluster store
//   flush                              answers when nothing waits to be copied or written
//
// verify takes one block of memory a turn and keeps at most kReadsInFlightMax reads of the disk
// under way, into scratch places of the arena; it tells its progress once a second. A bad copy is
// removed, as if a reader had reported it. One verify runs at a time.
//
// Invariants: every command is answered once with `final`, unless its session ends.
// Errors: kInvalidArgument, kNotFound, kConflict, kOverloaded in the answer.
// Concurrency: one thread. Source: issue 3 part 6.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "service/kvd/inside.h"

namespace penstock::service {

// A verify under way.
struct VerifyJob {
  kv::SessionId session;
  std::uint64_t number = 0;
  std::uint64_t job = 0;
  std::size_t slot = 0;  // next of memory
  bool host_done = false;
  std::size_t part = 0, parts = 0;  // of the disk: the next to list, and how many there are
  std::vector<BlockName> on_disk;   // of the part before, to read
  std::size_t next = 0;             // of on_disk
  std::uint64_t host_total = 0, disk_total = 0;  // when it began
  std::uint64_t host_blocks = 0, disk_blocks = 0, bytes = 0, gone = 0;
  std::vector<std::pair<KvTier, BlockName>> bad;
  std::uint64_t bad_blocks = 0;
  Instant told;
};

class Admin {
 public:
  static constexpr std::size_t kReadsInFlightMax = 4;
  static constexpr std::size_t kFlushesMax = 64;  // waiting at a time

  explicit Admin(Inside inside) : inside_(inside) {}

  void handle(kv::SessionId session, const kv::Admin& command, const SessionNumbers& sessions,
              TierNow now, Outbox& outbox);
  bool has_work() const;
  // One step of a verify.
  void work(TierNow now, Outbox& outbox);
  // Takes what the disk has reported; answers who waits for it to be quiet.
  void finish(Outbox& outbox);
  void close(kv::SessionId session);
  const Inside& inside() const { return inside_; }
  // Reads of its own that are under way.
  std::size_t in_flight() const { return in_flight_; }

 private:
  struct Read {
    std::uint64_t job = 0;
    BlockName name;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    MissReason reason = MissReason::kNone;
  };

  Result<std::string> answer(const kv::Admin& command, const boost::json::object& arguments,
                             const SessionNumbers& sessions, TierNow now);
  // Answers at once, or when the cluster store was swept.
  Result<std::optional<std::string>> collect_garbage(kv::SessionId session, std::uint64_t number,
                                                     const boost::json::object& arguments,
                                                     TierNow now);
  Status start_verify(kv::SessionId session, std::uint64_t number,
                      const boost::json::object& arguments, TierNow now);
  void verify_host(TierNow now);
  void verify_disk(TierNow now);
  void found_bad(KvTier tier, const BlockName& name);
  std::string progress() const;
  bool wants_read() const;
  bool has_read_all() const;

  Inside inside_;
  std::optional<VerifyJob> verify_;
  std::uint64_t last_job_ = 0;
  std::size_t in_flight_ = 0;
  bool waits_for_room_ = false;  // until one of its reads has ended
  // Outlives the object while the disk may still report.
  std::shared_ptr<std::vector<Read>> reads_ = std::make_shared<std::vector<Read>>();
  std::deque<std::pair<kv::SessionId, std::uint64_t>> flushes_;
  struct Sweep {
    kv::SessionId session;
    std::uint64_t number = 0;
    bool dry_run = false;
    std::size_t orphans = 0;  // of memory, and so on
    std::uint64_t corrupt_bytes = 0;
    std::optional<ClusterGcNumbers> numbers;  // when it has ended
  };
  std::shared_ptr<Sweep> sweep_;  // of the cluster store, asked for by a gc; the tier tells it
};

}  // namespace penstock::service
