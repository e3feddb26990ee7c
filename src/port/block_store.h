// BlockStore: a distributed store of whole objects that several hosts share: Ceph RADOS, a
// directory on a shared mount, 3FS.
//
// The cluster tier (service/kvd/cluster_tier) keeps extents of KV blocks in it. It knows nothing of
// blocks: objects have a name, a pool, bytes and a time slice, the last one they are to live in (a
// number that only grows; use moves it on). Two pools: extents
// (erasure coded, whole objects of 1-4 MiB) and small (replicated: single blocks). Beside the
// objects it keeps manifests, sets of names by (class, slice), from which expiry works without ever
// listing a pool, and leases, so that one sweeper works on a slice.
//
// All operations are asynchronous. `done` comes exactly once, inside poll() on the caller's thread,
// at the deadline at the latest (kTooSlow): the operation is cancelled then, but its buffer stays
// with the store until the backend has let go of it, which is why buffers are shared. Buffers that
// are still held so are counted (stats().stranded_bytes), so that the caller can bound them.
// An object is visible whole or not at all. Two writers of one name write the same bytes, so the
// last one wins and nothing is torn.
// Errors: reasons, never exceptions or aborts; kNeverStored: no such object. A full store answers
// kEvictedShare to put, and does not block. Concurrency: one thread; the store's own threads stay
// inside. Names: printable ASCII without '/', at most 128 bytes. Source: design.md section 6;
// facts/kvcache.md 7c; docs/design/0013-cluster-tier.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "domain/kv.h"

namespace penstock {

enum class StorePool : std::uint8_t { kExtents, kSmall };

// Number of a period: wall time divided by the length of a slice, one length for a whole store.
using TimeSlice = std::uint64_t;

struct StoreBuffer {
  std::shared_ptr<std::byte[]> owner;
  std::span<std::byte> bytes;  // of owner's
};

struct StoreName {
  StorePool pool = StorePool::kExtents;
  std::string name;
  auto operator<=>(const StoreName&) const = default;
};

struct StorePut {
  StoreName name;
  StoreBuffer payload;
  TimeSlice slice = 0;  // the last it lives in; an object that is there keeps a later one
  Instant deadline;
  std::function<void(MissReason)> done;
};

struct StoreGet {
  StoreName name;
  std::uint64_t offset = 0;
  StoreBuffer destination;
  Instant deadline;
  // With kNone: how many bytes were read; fewer than asked for where the object ends.
  std::function<void(MissReason, std::size_t)> done;
};

struct StoreFound {
  std::uint64_t bytes = 0;  // 0: there is no such object, or the store could not say
  TimeSlice slice = 0;      // its noted one
};

struct StoreLookUp {
  std::vector<StoreName> names;
  Instant deadline;
  // With kNone: one for each name, in order.
  std::function<void(MissReason, std::vector<StoreFound>)> done;
};

// The names used in one slice of one class. Sharded by the store as it needs. A name may stand
// there twice, and in several manifests; whether it goes is what its object's noted slice says.
struct ManifestId {
  TtlClass ttl_class = 0;
  TimeSlice slice = 0;
  auto operator<=>(const ManifestId&) const = default;
};

struct ManifestPage {
  std::vector<StoreName> names;  // in the store's order
  std::string next;              // where the next page begins; empty: this is the last
};

struct StoreUse {
  std::uint64_t bytes_used = 0;   // of our pools, as the store counts (redundancy included)
  std::uint64_t bytes_total = 0;  // that our pools could use
  std::uint64_t objects = 0;
  bool full = false;
};

struct StoreStats {
  std::uint64_t gets = 0, get_bytes = 0, puts = 0, put_bytes = 0, look_ups = 0, removes = 0;
  std::uint64_t timeouts = 0, io_errors = 0;
  std::uint64_t stranded_bytes = 0;  // in buffers of cancelled operations
  std::string state;                 // "ok", or what is wrong and what to do
};

class BlockStore {
 public:
  using Done = std::function<void(MissReason)>;

  virtual ~BlockStore() = default;
  virtual void put(StorePut put) = 0;
  virtual void get(StoreGet get) = 0;
  virtual void look_up(StoreLookUp look_up) = 0;
  // Notes that an object lives in `slice`, too; an earlier one than the noted changes nothing.
  // kNeverStored: there is no such object.
  virtual void touch(StoreName name, TimeSlice slice, Instant deadline, Done done) = 0;
  // Removes an object if its noted slice is at most `slice_max`, as one operation; else kNone with
  // the object left. `removed` says which, and its bytes.
  virtual void remove(StoreName name, TimeSlice slice_max, Instant deadline,
                      std::function<void(MissReason, bool removed, std::uint64_t bytes)> done) = 0;

  virtual void add_to_manifest(ManifestId id, std::vector<StoreName> names, Instant deadline,
                               Done done) = 0;
  // `from`: empty, or `next` of the page before.
  virtual void read_manifest(ManifestId id, std::string from, std::size_t names_max,
                             Instant deadline,
                             std::function<void(MissReason, ManifestPage)> done) = 0;
  virtual void list_manifests(Instant deadline,
                              std::function<void(MissReason, std::vector<ManifestId>)> done) = 0;
  // A manifest whose names were all dealt with.
  virtual void drop_manifest(ManifestId id, Instant deadline, Done done) = 0;

  // Exclusive for `duration`, or until given back; renewed by taking it again. `taken` is false
  // when another owner has it.
  virtual void take_lease(std::string what, std::string owner, Duration duration, Instant deadline,
                          std::function<void(MissReason, bool taken)> done) = 0;
  virtual void give_back_lease(std::string what, std::string owner, Instant deadline,
                               Done done) = 0;

  virtual void use(Instant deadline, std::function<void(MissReason, StoreUse)> done) = 0;

  virtual void poll(Instant now) = 0;
  // Readable when poll() has completions to deliver; -1: poll at deadlines.
  virtual int event_fd() const = 0;
  virtual StoreStats stats() const = 0;
};

}  // namespace penstock
