// Inside: what the commands for people may look at of the daemon.
//
// Concurrency: one thread; references live as long as the daemon.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/kvcache/load_model.h"
#include "core/kvcache/reuse_distance.h"
#include "service/kvd/leases.h"
#include "service/kvd/stores.h"

namespace penstock::service {

// What a root stands for, as it was registered.
struct KnownRoot {
  std::string scope;
  std::string build;
  KvLayoutSpec layout;
  std::uint64_t used = 0;  // order of last use
};

struct SessionNumbers {
  std::size_t sessions = 0;
  std::size_t subscribers = 0;
  std::size_t silent = 0;
  std::uint64_t quarantined_bytes = 0;  // pinned by silent holders
};

struct Inside {
  Holdings& holdings;
  const EventLog& log;
  const Loads& loads;
  const WriteThrough& writes;
  const Leases& leases;
  const Stores& stores;
  ClusterTier* cluster;  // null: there is none
  const ClusterWrites& cluster_writes;
  const KvStatistics& statistics;
  const AcquireRecords& records;
  const kvcache::ReuseDistance& reuse;
  const kvcache::LoadModel& load_model;
  const std::map<BlockKey, KnownRoot>& roots;
  const std::vector<TtlClassSpec>& classes;
  const std::string& disk_failure;
  const UnixSeconds& started;  // when this run of the daemon got its first session
};

}  // namespace penstock::service
