// Pools: which workers a service has on this machine, from `--pools prefill=1,decode=1`.
//
// Each worker is a process with a name (ROLE-NUMBER), a role and a socket in the data folder; the
// supervisor starts them, the gateway connects to them. A gateway elsewhere is given --worker
// NAME=ADDRESS instead.
//
// Errors: kInvalidArgument naming what is wrong in the text. Concurrency: pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "app/options.h"
#include "base/result.h"
#include "domain/engine.h"

namespace penstock {

struct Pool {
  WorkerRole role = WorkerRole::kMixed;
  std::uint32_t workers = 0;
};

inline constexpr std::uint32_t kPoolWorkersMax = 64;  // of all pools

Result<WorkerRole> parse_role(std::string_view text);
std::string_view to_string(WorkerRole role);
Result<std::vector<Pool>> parse_pools(std::string_view text);

struct PlannedWorker {
  std::string name;
  WorkerRole role = WorkerRole::kMixed;
  std::string socket;  // path
};
// In the order in which they are started. Precondition: the options' pools were checked.
std::vector<PlannedWorker> planned_workers(const Options& options);

// NAME=ADDRESS of the workers a gateway connects to: as given, else those of the pools.
std::vector<Assignment> gateway_workers(const Options& options);

// Where the worker listens for peers that pull KV: "shm:/path", "tcp:host:port", "ucx:host:port".
std::string transport_address(const Options& options);

}  // namespace penstock
