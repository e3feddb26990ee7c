// A BlockStore on Ceph RADOS: extents in an erasure coded pool, everything else in a replicated
// one.
//
//   extents pool   NAME                       objects; attribute "slice": twenty decimal digits
//   small pool     NAME                       objects, the same
//                  manifests/CLASS/SLICE/NN   omap: keys "e/NAME" and "s/NAME" (erasure coded pools
//                                             have no omap); NN: shard, one for the names that came
//                                             at once
//                  manifests/all              omap: keys "CLASS/SLICE"
//                  leases/WHAT                a lock of class "lock", the owner is its cookie
//
// One thread of ours connects and makes the few calls that librados has only in a blocking form
// (leases, use); all else is asynchronous. A cluster that is down when the store is opened, or
// refuses our key, delays nobody: operations are answered kTierOff until it is there.
// An object that is there is replaced by a second write, because its slice must not go back: the
// first asks to create. Writes carry the full-try flag: a full cluster answers, as kEvictedShare.
// RADOS says "no such object" also when too few shards are left (ceph#16663): a miss either way.
//
// Errors: BlockStore's reasons; kTierOff: not connected, or no right to. Limits:
// `inflight_bytes_max` (more: kTooSlow). The destructor waits for calls under way, which it
// cancels; a blocking one ends within five seconds, or thirty when an OSD hangs. Concurrency: one
// thread. Source: docs/cluster-ceph.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "port/block_store.h"

namespace penstock::rados {

struct RadosStoreOptions {
  std::string conf;                   // path of a ceph.conf
  std::string user = "client.admin";  // "client.NAME"
  std::string keyring;                // path; empty: what the ceph.conf says
  std::string extents_pool = "penstock-extents";
  std::string small_pool = "penstock-small";
  std::string name_space = "penstock";  // of both pools; stores with different ones don't meet
  std::uint64_t inflight_bytes_max = std::uint64_t{1} << 30;
};

// kUnsupported: built without librados; kUnavailable: it is not installed; kInvalidArgument: an
// option is empty or malformed. The cluster is not contacted yet; stats().state says when it is
// there ("ok") or what is in the way.
Result<std::unique_ptr<BlockStore>> open_rados_store(RadosStoreOptions options);

}  // namespace penstock::rados
