// ClusterGc: removes from a cluster store what its classes' lifetimes, or its capacity, say.
//
// Every `interval` it lists the manifests. One whose slice and lifetime are over is swept: its
// names are read page by page, and each object goes if the slice noted with it is over, too (it was
// not used since), by the store's guarded removal. When the store holds more than its target, the
// oldest manifests are swept before their time, objects used later are left; what a run removed
// counts as gone at once, as stores count with a delay (without a target: one manifest a run while
// the store is full). A swept manifest is
// dropped, after what it leaves was put into the current one, so that every object stands in one
// even when lifetimes were changed. What is in no manifest is never seen: no pool is listed.
//
// One sweeper works on a manifest, by lease; where it is, is kept in the store after each page, so
// that another goes on there. Removals are limited to a rate. With `dry_run` objects are looked at
// and counted once each, and nothing is changed; how far it would go for room is estimated, as an
// object's bytes are fewer than the store counts for it where it keeps more than one copy.
//
// Invariants: an object whose noted slice is not over is never removed for its age. Errors: what
// the store fails to answer ends the run; the next one goes on. Concurrency: one thread; the
// store's answers come in its poll(). Source: docs/design/0013-cluster-tier.md; facts 7c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "port/block_store.h"
#include "port/block_tier.h"

namespace penstock::service {

struct ClusterGcOptions {
  std::vector<TtlClassSpec> classes;
  std::chrono::seconds slice = std::chrono::hours(6);
  std::uint64_t bytes_max = 0;  // target of the whole store; 0: what the store itself can hold
  std::string owner;            // of leases; unique
  Duration interval = std::chrono::minutes(5);
  Duration limit = std::chrono::seconds(30);  // of one operation
  std::size_t names_per_page = 256;
  std::size_t names_per_second = 1000;
  bool dry_run = false;
};

struct ClusterGcNumbers {
  std::uint64_t runs = 0;       // ended
  std::uint64_t manifests = 0;  // in the store when it was last listed
  std::uint64_t swept = 0;      // manifests dealt with
  std::uint64_t names = 0;      // looked at
  std::uint64_t removed = 0, removed_bytes = 0;
  std::uint64_t kept = 0;  // used later
  std::uint64_t failures = 0;

  // What was done since `before`.
  ClusterGcNumbers operator-(const ClusterGcNumbers& before) const {
    return {runs - before.runs,       manifests,
            swept - before.swept,     names - before.names,
            removed - before.removed, removed_bytes - before.removed_bytes,
            kept - before.kept,       failures - before.failures};
  }
};

class ClusterGc {
 public:
  // `store` outlives it, and is polled by its other user.
  ClusterGc(BlockStore& store, ClusterGcOptions options);
  void poll(TierNow now);
  // Begins a run at the next poll, unless one is under way.
  void hurry() { next_run_ = Instant(); }
  bool busy() const { return step_ != Step::kIdle; }
  const ClusterGcNumbers& numbers() const { return numbers_; }

 private:
  enum class Step : std::uint8_t { kIdle, kWaiting, kNext, kSweeping };
  struct Sweep {
    ManifestId id;
    TimeSlice slice_max = 0;  // objects noted with later ones stay
    bool by_age = true;       // else for room
  };

  TimeSlice lifetime(TtlClass ttl_class) const;  // in slices
  std::string name_of(ManifestId id) const;
  // Wraps an answer: not when this is gone meanwhile; a failure ends the run.
  template <typename... Rest, typename Then>
  auto answer(Then then);
  void fail();
  void end_run();
  void list();
  void listed(std::vector<ManifestId> ids);
  void ask_use();
  void next();
  void begin(const Sweep& sweep);
  void read_page();
  void work();
  void look(std::vector<StoreName> names);
  void one_done();
  void end_page();
  void save_place();
  void end_sweep();
  TimeSlice current() const;

  BlockStore& store_;
  ClusterGcOptions options_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  TierNow now_{};
  Instant next_run_{};
  Step step_ = Step::kIdle;
  std::deque<Sweep> due_;
  std::deque<Sweep> young_;  // not due, the oldest first, for when there is no room
  Sweep sweep_;
  std::string at_;        // where the page began
  std::string page_end_;  // where the next begins; empty: this was the last
  std::deque<StoreName> to_remove_;
  std::vector<StoreName> kept_;             // of this page
  std::unordered_set<std::uint64_t> seen_;  // dry run: hashes of the names counted as removed
  std::size_t under_way_ = 0;
  std::uint64_t removed_before_ = 0;  // bytes, when the run began
  double allowance_ = 0;              // names that may be removed now
  Instant allowed_at_{};
  ClusterGcNumbers numbers_;
};

}  // namespace penstock::service
