#include "service/foreign/engine_set.h"

#include <fmt/format.h>
#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "core/dialects/json_body.h"

namespace penstock::foreign {
namespace {

using namespace std::chrono_literals;
using enum ErrorCode;

constexpr Duration kProbeInterval = 1s;
constexpr Duration kProbeTimeout = 2s;
constexpr std::uint32_t kFailedProbesMax = 2;
// Engines within this much of the least load may be chosen for their cache.
constexpr double kNearlyFactor = 1.25;
constexpr double kNearlyExtra = 2;
constexpr std::size_t kProbeBytesMax = std::size_t{8} << 20;

double total(std::span<const dialects::RankLoad> loads) {
  double sum = 0;
  for (const dialects::RankLoad& load : loads)
    sum += load.running.value_or(0) + load.waiting.value_or(0);
  return sum;
}

}  // namespace

Task<Result<std::string>> read_whole(UpstreamCall& call, std::size_t bytes_max, Instant deadline) {
  std::string body;
  while (true) {
    CO_TRY(const std::string bytes, co_await call.read(deadline));
    if (bytes.empty()) co_return body;
    body += bytes;
    if (body.size() > bytes_max)
      co_return fail(kPayloadTooLarge, "the answer is larger than any answer may be");
  }
}

bool Engine::serves(std::string_view model) const {
  return std::ranges::find(models, model, &dialects::EngineModel::id) != models.end();
}

double Engine::load() const {
  return running + std::max(0.0, total(loads) - running_at_report);
}

void EngineSet::add(EngineConfig config, std::unique_ptr<Upstream> upstream) {
  engines_.push_back(std::make_unique<Engine>(std::move(config), std::move(upstream)));
}

void EngineSet::start() {
  for (const auto& engine : engines_)
    gate_.start(watch(*engine));
}

void EngineSet::close_connections() {
  for (const auto& engine : engines_)
    engine->upstream->close();
}

std::vector<HttpHeader> EngineSet::credentials(const Engine& engine) {
  if (engine.config.key.empty()) return {};
  return {{"authorization", "Bearer " + engine.config.key}};
}

void EngineSet::abort(Engine& engine, const std::string& rid) {
  gate_.start(send_abort(engine, fmt::format(R"({{"rid":{}}})", dialects::quoted(rid))));
}

// What it answers changes nothing: the request may have ended meanwhile.
Task<void> EngineSet::send_abort(Engine& engine, std::string body) {
  auto headers = credentials(engine);
  headers.push_back({"content-type", "application/json"});
  const auto call =
      engine.upstream->call({"POST", "/abort_request", std::move(headers), std::move(body)});
  static_cast<void>(co_await call->head(clock_.now() + kProbeTimeout));
}

Task<void> EngineSet::watch(Engine& engine) {
  while (!stopping_) {
    co_await probe(engine);
    for (Duration waited{}; waited < kProbeInterval && !stopping_; waited += 50ms)
      co_await Sleep(clock_, 50ms);
  }
}

Task<Result<std::string>> EngineSet::get(Engine& engine, std::string target) {
  const Instant deadline = clock_.now() + kProbeTimeout;
  const auto call =
      engine.upstream->call({"GET", std::move(target), credentials(engine), std::string()});
  CO_TRY(const UpstreamHead head, co_await call->head(deadline));
  CO_TRY(std::string body, co_await read_whole(*call, kProbeBytesMax, deadline));
  if (head.status == 401 || head.status == 403)
    co_return fail(kUnauthenticated,
                   fmt::format("it refuses our credentials ({}); give its key with key-file=FILE",
                               head.status));
  if (head.status != 200) co_return fail(kUnavailable, fmt::format("it says {}", head.status));
  co_return body;
}

Task<void> EngineSet::probe(Engine& engine) {
  std::string why;
  const auto alive = co_await get(engine, "/health");
  if (alive) {
    const auto listed = co_await get(engine, "/v1/models");
    auto models = listed ? dialects::parse_models(*listed) : std::nullopt;
    if (models && !models->empty()) {
      engine.models = std::move(*models);
    } else if (!listed) {
      why = "GET /v1/models: " + listed.error().message;
    } else {
      why = fmt::format("GET /v1/models is no list of models; is it a {} server?",
                        engine.dialect().name);
    }
  } else {
    why = "GET /health: " + alive.error().message;
  }
  const bool good = why.empty();
  engine.failed_probes = good ? 0 : engine.failed_probes + 1;
  const bool healthy = good || (engine.healthy && engine.failed_probes < kFailedProbesMax);
  if (healthy != engine.healthy || !engine.probed) {
    log_(healthy ? fmt::format("engine {} ({}) serves {} models", engine.config.name,
                               engine.config.url, engine.models.size())
                 : fmt::format("engine {} ({}) is not usable: {}", engine.config.name,
                               engine.config.url, why));
  }
  engine.healthy = healthy;
  engine.probed = true;
  if (good && !stopping_) co_await read_loads(engine);
}

// The first report that the engine has, the newest form first. None is no load, not a bad one.
Task<void> EngineSet::read_loads(Engine& engine) {
  struct Report {
    std::string_view target;
    std::vector<dialects::RankLoad> (*parse)(std::string_view);
  };
  static constexpr Report kVllm[] = {{"/metrics", dialects::parse_vllm_metrics}};
  static constexpr Report kSglang[] = {{"/v1/loads?include=core", dialects::parse_sglang_loads},
                                       {"/get_load", dialects::parse_sglang_loads},
                                       {"/metrics", dialects::parse_sglang_metrics}};
  static constexpr Report kLlamaCpp[] = {{"/slots", dialects::parse_llamacpp_slots},
                                         {"/metrics", dialects::parse_llamacpp_metrics}};
  const std::span<const Report> reports =
      engine.config.kind == dialects::EngineKind::kVllm     ? std::span<const Report>(kVllm)
      : engine.config.kind == dialects::EngineKind::kSglang ? std::span<const Report>(kSglang)
                                                            : std::span<const Report>(kLlamaCpp);
  engine.loads.clear();
  for (const Report& report : reports) {
    const auto text = co_await get(engine, std::string(report.target));
    if (!text) continue;
    engine.loads = report.parse(*text);
    engine.running_at_report = engine.running;
    if (!engine.loads.empty()) break;
  }
}

Engine* EngineSet::pick(const Wanted& wanted) const {
  const Instant now = clock_.now();
  std::vector<Engine*> fit;
  for (const auto& engine : engines_) {
    const bool prefills = engine->config.role == EngineRole::kPrefill;
    if (prefills != wanted.prefill_for.has_value()) continue;
    if (prefills && engine->config.kind != *wanted.prefill_for) continue;
    if (engine->healthy && engine->serves(wanted.model) &&
        dialects::speaks(engine->dialect(), wanted.api) && engine->breaker.allows(now) &&
        !engine->breaker.busy(now) &&
        std::ranges::find(wanted.tried, engine.get()) == wanted.tried.end())
      fit.push_back(engine.get());
  }
  if (fit.empty()) return nullptr;
  const double least = (*std::ranges::min_element(fit, {}, &Engine::load))->load();
  const std::uint64_t head = checksum64(wanted.prompt_head);
  Engine* best = nullptr;
  std::uint64_t best_rank = 0;
  for (Engine* engine : fit) {
    if (engine->load() > least * kNearlyFactor + kNearlyExtra) continue;
    const std::uint64_t rank = checksum64(fmt::format("{}\n{:016x}", engine->config.name, head));
    if (best == nullptr || rank > best_rank) {
      best = engine;
      best_rank = rank;
    }
  }
  return best;
}

Duration EngineSet::busy_for(const Wanted& wanted) const {
  const Instant now = clock_.now();
  Duration wait = Duration::zero();
  for (const auto& engine : engines_) {
    if (!engine->healthy || !engine->serves(wanted.model) || !engine->breaker.busy(now)) continue;
    const Duration left = engine->breaker.busy_until() - now;
    wait = wait == Duration::zero() ? left : std::min(wait, left);
  }
  return wait;
}

Error EngineSet::why_none(const Wanted& wanted) const {
  std::size_t serving = 0;
  std::size_t speaking = 0;
  for (const auto& engine : engines_) {
    if (!engine->serves(wanted.model)) continue;
    ++serving;
    speaking += dialects::speaks(engine->dialect(), wanted.api) ? 1 : 0;
  }
  if (serving > 0 && speaking == 0)
    return {kUnsupported,
            fmt::format("no engine of the model {} has the route {}", wanted.model,
                        dialects::path_of(wanted.api)),
            {},
            {}};
  if (busy_for(wanted) > Duration::zero())
    return {kOverloaded,
            fmt::format("all engines of the model {} are busy; try again shortly", wanted.model),
            {},
            {}};
  return {kUnavailable,
          fmt::format("no engine of the model {} can take the request now; try again shortly",
                      wanted.model),
          {},
          {}};
}

bool EngineSet::all_probed() const {
  return std::ranges::all_of(engines_, [](const auto& e) { return e->probed; });
}

bool EngineSet::ready() const {
  return std::ranges::any_of(
      engines_, [&](const auto& e) { return e->healthy && e->breaker.allows(clock_.now()); });
}

bool EngineSet::knows(std::string_view model) const {
  return std::ranges::any_of(engines_, [&](const auto& e) { return e->serves(model); });
}

std::vector<dialects::EngineModel> EngineSet::models() const {
  std::vector<dialects::EngineModel> all;
  for (const auto& engine : engines_) {
    all.insert(all.end(), engine->models.begin(), engine->models.end());
  }
  std::ranges::sort(all, {}, &dialects::EngineModel::id);
  const auto same = std::ranges::unique(all, {}, &dialects::EngineModel::id);
  all.erase(same.begin(), same.end());
  return all;
}

}  // namespace penstock::foreign
