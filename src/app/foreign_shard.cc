#include "app/foreign_shard.h"

#include <fmt/format.h>
#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "app/entropy.h"
#include "base/check.h"
#include "io/http/upstream.h"
#include "io/telemetry/log.h"

namespace penstock {
namespace {

foreign::RelayLimits relay_limits(const Options& options) {
  foreign::RelayLimits limits;
  limits.request_time_max = options.request_time_max;
  limits.keep_alive_interval = options.keep_alive_interval;
  limits.engine_wait_max = options.worker_wait_max;
  return limits;
}

std::map<std::string, std::string, std::less<>> alias_map(const Options& options) {
  std::map<std::string, std::string, std::less<>> aliases;
  for (const Assignment& alias : options.aliases)
    aliases.emplace(alias.name, alias.value);
  return aliases;
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

ForeignShard::ForeignShard(http::AsioClock& clock, const Options& options, ForeignFleet& fleet,
                           bool tells)
    : clock_(clock),
      engines_(
          clock,
          [tells](const std::string& text) {
            if (tells) log_info("{}", text);
          },
          &fleet.prefixes(), &fleet.switches()),
      gateway_(clock, engines_, relay_limits(options), alias_map(options), Rng(draw_u64()),
               unix_seconds) {
  for (const FleetEngine& engine : fleet.engines())
    add(engine);
}

void ForeignShard::add(const FleetEngine& engine) {
  const ForeignEngine& what = engine.what;
  const auto server_at = [&](const std::string& url) {
    http::UpstreamOptions upstream;
    upstream.url = url;
    upstream.idle_max = dialects::dialect(what.kind).idle_max;
    auto server = http::HttpUpstream::make(clock_, std::move(upstream));
    ENSURE(server);  // the address was checked
    return std::move(*server);
  };
  foreign::EngineConfig config{what.kind,           what.name, what.url,
                               engine.key,          what.role, what.bootstrap_host,
                               what.bootstrap_port, engine.id, what.mooncake};
  const bool bootstraps = what.mooncake && what.role == foreign::EngineRole::kPrefill;
  auto bootstrap = bootstraps ? server_at(config.bootstrap_url()) : nullptr;
  engines_.add(std::move(config), server_at(what.url), std::move(bootstrap));
}

void ForeignShard::change(const ForeignFleet::Change& change) {
  for (const WorkerId id : change.removed)
    engines_.remove(id);
  for (const FleetEngine& engine : change.added)
    add(engine);
}

Task<void> ForeignShard::stopped() {
  engines_.stop();
  co_await engines_.drained();
  engines_.close_connections();
  co_await Sleep(clock_, std::chrono::milliseconds(10));  // their last operations end
}

}  // namespace penstock
