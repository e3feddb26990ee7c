// penstock gateway: the HTTP API in front of the workers; one shard per thread.
#include <fmt/format.h>
#include <sys/stat.h>
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "app/chat_encodings.h"
#include "app/commands.h"
#include "app/entropy.h"
#include "app/expert_planner.h"
#include "app/foreign_engines.h"
#include "app/gateway_shard.h"
#include "app/ready.h"
#include "app/stop_signal.h"
#include "app/values.h"
#include "core/routing/profile.h"
#include "io/files/files.h"
#include "io/files/kv_secret.h"
#include "io/telemetry/log.h"
#include "io/threads/thread_pool.h"

namespace penstock {
namespace {

constexpr std::size_t kEncodeQueueMax = 256;
constexpr Bytes kProfileMax{1 << 20};
// For `penstock explain`; some kilobytes each with many ranks.
constexpr std::size_t kPlacementsKept = 1024;

Result<gateway::ServedModel> load_model(const Options& options, const Assignment& model) {
  const std::string path = model.value + "/tokenizer.json";
  const auto where = fmt::format("loading the tokenizer of the model '{}' ({})", model.name, path);
  auto text = read_file(path, Bytes(Tokenizer::kJsonBytesMax));
  if (!text) return std::unexpected(std::move(text).error().within(where));
  auto tokenizer = Tokenizer::from_json(*text);
  if (!tokenizer) return std::unexpected(std::move(tokenizer).error().within(where));

  gateway::ServedModel served;
  served.name = model.name;
  served.tokenizer = std::move(*tokenizer);
  const Assignment* own = find_assignment(options.chat_templates, model.name);
  auto encoding = chat_encoding_of(model.value, own != nullptr ? own->value : "", served.tokenizer);
  if (!encoding) {
    return std::unexpected(std::move(encoding).error().within(
        fmt::format("the chat encoding of the model '{}'", model.name)));
  }
  served.encoding = std::move(*encoding);
  struct stat file{};
  if (stat(path.c_str(), &file) == 0) served.created = file.st_mtime;
  return served;
}

Result<gateway::ModelCatalog> load_catalog(const Options& options) {
  gateway::ModelCatalog catalog;
  if (serves_foreign(options)) return catalog;
  for (const Assignment& model : options.models) {
    TRY(auto served, load_model(options, model));
    TRY_STATUS(catalog.add(std::move(served)));
  }
  for (const Assignment& alias : options.aliases) {
    TRY_STATUS(catalog.add_alias(alias.name, alias.value));
  }
  return catalog;
}

Result<gateway::EngineSeeds> load_seeds(const Options& options) {
  gateway::EngineSeeds seeds;
  for (const Assignment& profile : options.engine_profiles) {
    TRY(const std::string text, read_file(profile.value, kProfileMax));
    auto parsed = routing::parse_profile(text);
    if (!parsed) return std::unexpected(std::move(parsed).error().within(profile.value));
    seeds[profile.name] = parsed->costs;
  }
  return seeds;
}

Result<int> serve_http(const Options& options) {
  TRY(const gateway::ModelCatalog catalog, load_catalog(options));
  std::optional<ApiKeys> keys;
  if (!options.api_key_file.empty()) {
    TRY(keys, ApiKeys::load(options.api_key_file));
    for (const auto& [name, cache_class] : keys->cache_classes()) {
      if (find_assignment(options.kv_classes, cache_class) != nullptr) continue;
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: the key \"{}\" has the cache class \"{}\", which kv.classes does "
                      "not have",
                      options.api_key_file, name, cache_class),
          "listen.api_keys");
    }
  }
  AccessLog::Options log_options;
  log_options.path = options.access_log;
  TRY(const auto access_log, AccessLog::open(std::move(log_options)));
  Metrics metrics;
  metrics.gauge(Metric::kBuildInfo, {PENSTOCK_VERSION, "gateway"}).set(1);
  // Long prompts are encoded one at a time per core beside the shards.
  ThreadPool encode_pool(std::max(1U, options.gateway_threads), kEncodeQueueMax);
  std::optional<kv::KvIndexFeed> kv_feed;
  if (options.kv_cache == "on") {
    TRY(const auto secret, read_kv_secret(options.kv_secret_file));
    kv_feed.emplace(
        kv::KvIndexFeedOptions{{options.kv_socket}, secret, "gateway", [](std::string_view text) {
                                 log_warning("{}", text);
                               }});
  }
  TRY(const gateway::EngineSeeds engine_seeds, load_seeds(options));
  std::optional<ForeignFleet> fleet;
  if (serves_foreign(options)) {
    fleet.emplace(options);
    TRY_STATUS(fleet->load());
  }
  PlacementHistory history(kPlacementsKept);
  OperatorAccess operators;
  TRY(const auto responses, ResponseKeeping::start(options));
  const GatewayShared shared{
      options,     catalog,           keys ? &*keys : nullptr,       metrics,      *access_log,
      encode_pool, Epoch(draw_u64()), kv_feed ? &*kv_feed : nullptr, engine_seeds, history,
      operators,   *responses,        fleet ? &*fleet : nullptr};

  std::vector<std::unique_ptr<GatewayShard>> shards;
  std::atomic<std::uint32_t> ready_shards{0};
  std::atomic<std::uint16_t> port{static_cast<std::uint16_t>(options.port)};
  const std::uint32_t count = std::max(1U, options.gateway_threads);
  std::atomic<bool> all_started{false};
  const auto report = [&] {
    if (ready_shards.load() < count || !all_started.load()) return;
    static std::atomic_flag reported;
    if (reported.test_and_set()) return;
    report_ready(options.ready_fd, {port.load(), {}});
    log_info("serving on {}:{}", options.host, port.load());
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    TRY(auto shard, GatewayShard::start(shared, i, port.load(), [&] {
          ++ready_shards;
          report();
        }));
    port = shard->port();
    shards.push_back(std::move(shard));
  }
  if (const Status granted = operators.grant(options, port.load()); !granted)
    log_warning("`penstock explain` will not find this gateway: {}", granted.error().message);
  all_started = true;
  report();

  std::optional<ExpertPlanner> expert_planner;
  if (options.expert_plan_interval > Duration::zero()) expert_planner.emplace(options, metrics);

  wait_for_stop_signal([&] {
    if (!fleet) return;
    const auto change = fleet->reread();
    if (!change) return log_warning("{}; the engines stay as they were", change.error().message);
    if (change->added.empty() && change->removed.empty()) return;
    log_info("engines: {} added, {} removed", change->added.size(), change->removed.size());
    for (const auto& shard : shards)
      shard->change_engines(*change);
  });
  log_info("draining");
  expert_planner.reset();
  metrics.gauge(Metric::kGatewayDraining).set(1);
  for (const auto& shard : shards)
    shard->drain();
  const bool finished = wait_until(
      [&] { return std::ranges::all_of(shards, [](const auto& s) { return s->drained(); }); },
      options.drain_timeout);
  if (!finished) log_warning("stopping with requests still running");
  for (const auto& shard : shards)
    shard->join();
  access_log->flush();
  return 0;
}

}  // namespace

Result<int> run_gateway(const Options& options) {
  block_stop_signals(options.ready_fd != 0);
  auto done = serve_http(options);
  if (!done) report_failure(options.ready_fd, done.error());
  return done;
}

}  // namespace penstock
