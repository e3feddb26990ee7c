// BlockTier: a store of KV blocks below host memory: the local disk, another host, a cluster store.
//
// The KV daemon asks contains() from its own thread, reads into and writes from its arena, and is
// told what went and why. Reads and writes are asynchronous; completions and removals are delivered
// inside poll(), on the caller's thread. The tier has an index in memory: contains() does no I/O.
//
// Invariants: a completion comes exactly once per read or write, also after a failure, and after it
// the tier touches the buffer no more (a read that is given up still owns its buffer until the
// device has answered: a time-out is reported to those who wait by the daemon, not here). A read
// ends with kNone only when every slice's checksum matched the record's; then `info` says what it
// is. A block whose write has completed with kNone survives a kill -9. Removals are reported before
// the bytes can be overwritten.
// Errors: reasons, never exceptions or aborts. Concurrency: one thread.
// Source: docs/design/0005-kv-cache.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "domain/kv.h"

namespace penstock {

struct TierRead {
  BlockName name;
  std::span<std::byte>
      destination;  // 4 KiB aligned; at least the block's bytes, rounded up to 4 KiB
  std::function<void(MissReason, const BlockInfo&)> done;
  // Where it is thought to lie (root, parent, depth) and for whom it is read; other hosts are told.
  BlockInfo asked = {};
};

struct TierWrite {
  BlockInfo info;
  std::span<const std::byte> payload;  // 4 KiB aligned; slices one after the other
  // kNone: durable against kill -9. kNotAdmitted, kEvictedShare, kTierOff, kIoError: not stored.
  std::function<void(MissReason)> done;
  bool always = false;  // is admitted without a second use, where the tier would wait for one
};

struct TierRemoval {
  BlockName name;
  MissReason reason;
  TtlClass ttl_class = 0;    // it was kept in; 0 when the tier does not know
  std::uint64_t tenant = 0;  // whose it was; 0 when the tier does not know
};

struct TierNow {
  Instant now;       // monotonic, strictly for ordering and rates
  UnixSeconds wall;  // for lifetimes
};

struct TierClassUse {
  std::uint64_t blocks = 0;    // live
  std::uint64_t bytes = 0;     // of them
  std::uint64_t segments = 0;  // that hold any, or may get some
};

struct TierTenantUse {
  TtlClass ttl_class = 0;
  std::uint64_t tenant = 0;
  std::uint64_t blocks = 0;  // live
  std::uint64_t bytes = 0;   // of them
};

struct TierStats {
  std::uint64_t blocks = 0;
  std::uint64_t bytes_used = 0;   // of live blocks
  std::uint64_t bytes_total = 0;  // capacity
  std::uint64_t index_bytes = 0;  // memory of the index
  std::uint64_t reads = 0, read_bytes = 0, writes = 0, write_bytes = 0;
  std::uint64_t removals[kMissReasons] = {};  // by reason
  std::uint64_t corrupt = 0, io_errors = 0, reinserted = 0;
  std::vector<TierClassUse> classes;   // by TTL class; empty: the tier knows none
  std::vector<TierTenantUse> tenants;  // those that hold blocks; empty: the tier knows none
  // How long blocks were not used: the longest, and half of them at least. 0: the tier can't tell.
  Duration idle_oldest{}, idle_median{};
  bool in_service = true;
  std::string state;  // "ok", or what is wrong and what to do
};

class BlockTier {
 public:
  virtual ~BlockTier() = default;
  virtual bool contains(const BlockName& name) const = 0;
  // Begins to fetch from memory what contains() and size_of() of this name will look at.
  virtual void prefetch(const BlockName& /*name*/) const {}
  // Bytes of its payload; nullopt when it is not there.
  virtual std::optional<std::uint32_t> size_of(const BlockName& name) const = 0;
  virtual void read(TierRead read) = 0;
  virtual void write(TierWrite write) = 0;
  // A hit used these blocks (a path from the root, in order): their lifetime starts again.
  virtual void touch(std::span<const BlockName> path, TtlClass ttl_class, TierNow now) = 0;
  // Removes a block, as corrupt or by hand. Unknown names are ignored.
  virtual void remove(const BlockName& name, MissReason reason) = 0;
  // Delivers completions and does what time demands (expiry, reclaim). Removals since the last call
  // are appended.
  virtual void poll(TierNow now, std::vector<TierRemoval>& removals) = 0;
  // A descriptor that is readable when poll() has completions to deliver; -1: poll at deadlines.
  virtual int event_fd() const = 0;
  // Calls `visit` with the name and payload bytes of every block, in no order; false stops it.
  virtual void for_each(
      const std::function<bool(const BlockName&, std::uint32_t)>& visit) const = 0;
  // The same in parts, for walks that must not take long at once: a block that stays meanwhile is
  // in one of the parts [0, parts()), always the same.
  virtual std::size_t parts() const { return 1; }
  virtual void for_each_in(
      std::size_t /*part*/,
      const std::function<bool(const BlockName&, std::uint32_t)>& visit) const {
    for_each(visit);
  }
  virtual TierStats stats() const = 0;
};

}  // namespace penstock
