// The store of the cluster tier, as --cluster-store names it.
//
// Concurrency: none. Source: docs/cluster-store.md.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/options.h"
#include "base/result.h"
#include "port/block_store.h"
#include "service/kvd/cluster_tier.h"

namespace penstock {

// "posix:/mnt/store", "3fs:/mnt/store", "rados:/etc/ceph/ceph.conf"; the store itself is not asked
// for anything yet. kInvalidArgument: no such kind, or its rest is wrong; or what the kind lacks.
Result<std::unique_ptr<BlockStore>> open_cluster_store(const std::string& text);

// Arguments of the `rados` command for the same cluster, user, pool of extents and name space.
// kInvalidArgument: the text names no store on RADOS.
Result<std::vector<std::string>> rados_arguments(const std::string& text);

// What --cluster-store and its companions say is sound. kInvalidArgument with the key.
Status check_cluster(const Options& options);

// Precondition: check_cluster().
service::ClusterTierOptions cluster_tier_options(const Options& options);

}  // namespace penstock
