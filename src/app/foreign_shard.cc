#include "app/foreign_shard.h"

#include <fmt/format.h>
#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "app/entropy.h"
#include "app/foreign_engines.h"
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

ForeignShard::ForeignShard(http::AsioClock& clock, const Options& options, bool tells)
    : clock_(clock),
      engines_(clock,
               [tells](const std::string& text) {
                 if (tells) log_info("{}", text);
               }),
      gateway_(clock, engines_, relay_limits(options), alias_map(options), Rng(draw_u64()),
               unix_seconds) {}

std::unique_ptr<ForeignShard> ForeignShard::make(http::AsioClock& clock, const Options& options,
                                                 bool tells) {
  const auto engines = foreign_engines(options);
  if (!engines || engines->empty()) return nullptr;
  std::unique_ptr<ForeignShard> shard(new ForeignShard(clock, options, tells));
  for (const ForeignEngine& engine : *engines) {
    http::UpstreamOptions upstream;
    upstream.url = engine.url;
    upstream.idle_max = dialects::dialect(engine.kind).idle_max;
    auto server = http::HttpUpstream::make(clock, std::move(upstream));
    ENSURE(server);  // the options were checked
    std::string key;
    if (!engine.key_file.empty()) {
      auto loaded = load_engine_key(engine.key_file);
      if (!loaded) log_warning("engine {}: {}", engine.name, loaded.error().message);  // went since
      key = loaded.value_or("");
    }
    shard->engines_.add({engine.kind, engine.name, engine.url, std::move(key), engine.role,
                         engine.host, engine.bootstrap_port},
                        std::move(*server));
  }
  return shard;
}

Task<void> ForeignShard::stopped() {
  engines_.stop();
  co_await engines_.drained();
  engines_.close_connections();
  co_await Sleep(clock_, std::chrono::milliseconds(10));  // their last operations end
}

}  // namespace penstock
