#include "app/pools.h"

#include <fmt/format.h>
#include <algorithm>

#include "app/foreign_engines.h"
#include "app/values.h"

namespace penstock {

Result<WorkerRole> parse_role(std::string_view text) {
  for (const WorkerRole role : {WorkerRole::kPrefill, WorkerRole::kDecode, WorkerRole::kMixed}) {
    if (text == to_string(role)) return role;
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("\"{}\" is no role; there are prefill, decode and mixed", text));
}

std::string_view to_string(WorkerRole role) {
  switch (role) {
    case WorkerRole::kPrefill:
      return "prefill";
    case WorkerRole::kDecode:
      return "decode";
    case WorkerRole::kMixed:
      return "mixed";
  }
  return "mixed";
}

Result<std::vector<Pool>> parse_pools(std::string_view text) {
  std::vector<Pool> pools;
  std::int64_t workers = 0;
  bool has_decode = false;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    TRY(const Assignment part, parse_assignment(text.substr(0, comma)));
    text.remove_prefix(std::min(comma + 1, text.size()));
    TRY(const WorkerRole role, parse_role(part.name));
    TRY(const std::int64_t count, parse_count(part.value));
    if (std::ranges::find(pools, role, &Pool::role) != pools.end())
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("the pool {} is given twice", part.name));
    workers += count;
    if (count < 0 || count > kPoolWorkersMax || workers > kPoolWorkersMax)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}={}: a machine has 1 to {} workers in all", part.name, part.value,
                              kPoolWorkersMax));
    if (count == 0) continue;
    has_decode = has_decode || role != WorkerRole::kPrefill;
    pools.push_back({role, static_cast<std::uint32_t>(count)});
  }
  if (!has_decode)
    return fail(ErrorCode::kInvalidArgument,
                "somebody has to decode: give a decode or mixed pool, as in prefill=1,decode=1");
  return pools;
}

std::vector<PlannedWorker> planned_workers(const Options& options) {
  std::vector<PlannedWorker> workers;
  if (serves_foreign(options)) return workers;
  const auto pools = parse_pools(options.pools);
  if (!pools) return workers;
  for (const Pool& pool : *pools) {
    for (std::uint32_t i = 0; i < pool.workers; ++i) {
      std::string name = fmt::format("{}-{}", to_string(pool.role), i);
      std::string socket = fmt::format("{}/run/{}.sock", options.data_dir, name);
      workers.push_back({std::move(name), pool.role, std::move(socket)});
    }
  }
  return workers;
}

std::vector<Assignment> gateway_workers(const Options& options) {
  if (!options.workers.empty()) return options.workers;
  std::vector<Assignment> workers;
  for (const PlannedWorker& worker : planned_workers(options))
    workers.push_back({worker.name, "unix:" + worker.socket});
  return workers;
}

std::string transport_address(const Options& options) {
  const std::string& given = options.transport;
  if (given.find(':') != std::string::npos) return given;
  if (given == "shm") return fmt::format("shm:{}/run/{}.kv", options.data_dir, options.worker_name);
  return given + ":127.0.0.1:0";
}

}  // namespace penstock
