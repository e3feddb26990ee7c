#include "service/foreign/engine_set.h"

#include <fmt/format.h>
#include <algorithm>
#include <utility>

#include "core/dialects/json_body.h"
#include "core/dialects/json_values.h"

namespace penstock::foreign {
namespace {

using namespace std::chrono_literals;
using enum ErrorCode;

constexpr Duration kProbeInterval = 1s;
constexpr Duration kProbeTimeout = 2s;
constexpr Duration kRenderTimeout = 2s;
constexpr Duration kAsideMax = 10s;
constexpr std::uint32_t kRanksMax = 1024;
constexpr std::uint32_t kFailedProbesMax = 2;
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

std::string EngineConfig::bootstrap_url() const {
  const bool v6 = bootstrap_host.contains(':');
  return fmt::format("http://{}{}{}:{}", v6 ? "[" : "", bootstrap_host, v6 ? "]" : "",
                     bootstrap_port);
}

bool Engine::pairs_with(const Engine& decode) const {
  return config.role == EngineRole::kPrefill && config.kind == decode.config.kind &&
         config.mooncake == decode.config.mooncake &&
         (version == decode.version || version.empty() || decode.version.empty());
}

bool Engine::serves(std::string_view model) const {
  return std::ranges::find(models, model, &dialects::EngineModel::id) != models.end();
}

double Engine::load() const {
  return running + std::max(0.0, total(loads) - running_at_report);
}

double Engine::load(std::uint32_t rank) const {
  const auto reported = std::ranges::find(loads, rank, &dialects::RankLoad::rank);
  const double told = reported == loads.end() ? 0 : total(std::span(&*reported, 1));
  return use[rank].running + std::max(0.0, told - use[rank].at_report);
}

EngineSet::EngineSet(Clock& clock, std::function<void(std::string)> log, PrefixSource* prefixes,
                     EngineSwitches* switches)
    : clock_(clock),
      log_(std::move(log)),
      prefixes_(prefixes),
      switches_(switches),
      policy_(routing::make_linear_cost({})) {}

void EngineSet::add(EngineConfig config, std::unique_ptr<Upstream> upstream,
                    std::unique_ptr<Upstream> bootstrap) {
  engines_.push_back(
      std::make_shared<Engine>(std::move(config), std::move(upstream), std::move(bootstrap)));
  if (started_) gate_.start(watch(engines_.back()));
}

void EngineSet::remove(WorkerId id) {
  const auto found =
      std::ranges::find(engines_, id, [](const auto& engine) { return engine->config.id; });
  if (found == engines_.end()) return;
  const auto engine = *found;
  engines_.erase(found);
  engine->removed = true;
  engine->upstream->close();
  if (engine->bootstrap) engine->bootstrap->close();
  if (prefixes_ != nullptr) prefixes_->forget(id);
}

void EngineSet::start() {
  started_ = true;
  for (const auto& engine : engines_)
    gate_.start(watch(engine));
}

void EngineSet::close_connections() {
  for (const auto& engine : engines_) {
    engine->upstream->close();
    if (engine->bootstrap) engine->bootstrap->close();
  }
}

std::vector<HttpHeader> EngineSet::credentials(const Engine& engine) {
  if (engine.config.key.empty()) return {};
  return {{"authorization", "Bearer " + engine.config.key}};
}

void EngineSet::abort(std::shared_ptr<Engine> engine, const std::string& rid) {
  gate_.start(send_abort(std::move(engine), fmt::format(R"({{"rid":{}}})", dialects::quoted(rid))));
}

// What it answers changes nothing: the request may have ended meanwhile.
Task<void> EngineSet::send_abort(std::shared_ptr<Engine> engine, std::string body) {
  auto headers = credentials(*engine);
  headers.push_back({"content-type", "application/json"});
  const auto call =
      engine->upstream->call({"POST", "/abort_request", std::move(headers), std::move(body)});
  static_cast<void>(co_await call->head(clock_.now() + kProbeTimeout));
}

void EngineSet::send_aside(const Place& place, UpstreamRequest request) {
  if (stopping_) return;
  gate_.start(run_aside(place, std::move(request)));
}

Task<void> EngineSet::run_aside(Place place, UpstreamRequest request) {
  const Permit permit(clock_, place);
  const auto call = place.engine->upstream->call(std::move(request));
  const Instant until = clock_.now() + kAsideMax;
  // Read, it gives the connection back.
  if (co_await call->head(until))
    static_cast<void>(co_await read_whole(*call, kProbeBytesMax, until));
}

Task<void> EngineSet::watch(std::shared_ptr<Engine> engine) {
  while (!stopping_ && !engine->removed) {
    co_await probe(*engine);
    for (Duration waited{}; waited < kProbeInterval && !stopping_ && !engine->removed;
         waited += 50ms)
      co_await Sleep(clock_, 50ms);
  }
}

Task<Result<std::string>> EngineSet::get(Engine& engine, std::string target) {
  return get(engine, *engine.upstream, std::move(target));
}

Task<Result<std::string>> EngineSet::get(Engine& engine, Upstream& from, std::string target) {
  const Instant deadline = clock_.now() + kProbeTimeout;
  const auto call = from.call({"GET", std::move(target), credentials(engine), std::string()});
  co_return co_await read_answer(*call, deadline);
}

// The body of a 200.
Task<Result<std::string>> EngineSet::read_answer(UpstreamCall& call, Instant deadline) {
  CO_TRY(const UpstreamHead head, co_await call.head(deadline));
  CO_TRY(std::string body, co_await read_whole(call, kProbeBytesMax, deadline));
  if (head.status == 401 || head.status == 403)
    co_return fail(kUnauthenticated,
                   fmt::format("it refuses our credentials ({}); give its key with key-file=FILE",
                               head.status));
  if (head.status != 200) co_return fail(kUnavailable, fmt::format("it says {}", head.status));
  co_return body;
}

// Why an engine can't do what its role asks, when it says so itself; empty when it can.
Task<std::string> EngineSet::unfit(Engine& engine) {
  if (engine.config.kind == dialects::EngineKind::kSglang) co_return co_await unfit_sglang(engine);
  if (engine.config.kind == dialects::EngineKind::kLlamaCpp) {
    const auto text = co_await get(engine, "/props");
    const auto props = text ? dialects::parse_llamacpp_props(*text) : std::nullopt;
    engine.context_length = props ? props->context_length : 0;
    co_return std::string();
  }
  if (engine.config.role == EngineRole::kMixed) co_return std::string();
  const auto text = co_await get(engine, "/version");
  engine.version = text ? dialects::string_at(*text, {"version"}).value_or("") : "";
  co_return std::string();
}

// Asks its bootstrap server by what names decode engines find its ranks.
Task<Status> EngineSet::ask_mooncake(Engine& engine) {
  auto text = co_await get(engine, *engine.bootstrap, "/query");
  auto found =
      text ? dialects::parse_mooncake_query(*text) : std::vector<dialects::MooncakeEngine>();
  engine.mooncake_engines = std::move(found);
  if (!engine.mooncake_engines.empty()) co_return Status();
  co_return fail(kUnavailable,
                 fmt::format("GET {}/query: {}; is it started with the Mooncake connector, and is "
                             "its VLLM_MOONCAKE_BOOTSTRAP_PORT what bootstrap-port says?",
                             engine.config.bootstrap_url(),
                             text ? "the answer names no engine" : text.error().message));
}

Task<Result<std::string>> EngineSet::mooncake_engine(std::shared_ptr<Engine> engine,
                                                     std::uint32_t rank) {
  if (engine->mooncake_engines.empty()) CO_TRY_STATUS(co_await ask_mooncake(*engine));
  const auto found =
      std::ranges::find(engine->mooncake_engines, rank, &dialects::MooncakeEngine::rank);
  if (found != engine->mooncake_engines.end()) co_return found->engine_id;
  co_return fail(kUnavailable, fmt::format("GET {}/query names no engine of rank {}",
                                           engine->config.bootstrap_url(), rank));
}

Task<std::string> EngineSet::unfit_sglang(Engine& engine) {
  auto text = co_await get(engine, "/get_server_info");
  if (!text) text = co_await get(engine, "/server_info");
  const auto info = text ? dialects::parse_sglang_info(*text) : std::nullopt;
  engine.version = info ? info->version : "";
  if (!info) co_return std::string();  // an old build, or a proxy before it
  const std::string_view wanted = engine.config.role == EngineRole::kPrefill  ? "prefill"
                                  : engine.config.role == EngineRole::kDecode ? "decode"
                                                                              : "null";
  if (info->disaggregation_mode != wanted)
    co_return fmt::format(
        "it runs in the disaggregation mode \"{}\", and this gateway takes it for \"{}\"; give it "
        "role=prefill or role=decode as it was started, or no role",
        info->disaggregation_mode, wanted);
  if (wanted != "prefill") co_return std::string();
  if (info->bootstrap_port != 0 && info->bootstrap_port != engine.config.bootstrap_port)
    co_return fmt::format("its bootstrap port is {}: give it bootstrap-port={}",
                          info->bootstrap_port, info->bootstrap_port);
  if (info->dp_size > 1 && info->load_balance_method != "follow_bootstrap_room")
    log_(fmt::format(
        "engine {} ({}) has {} ranks and balances them by \"{}\": decode may look for the KV on "
        "another rank; start it with --load-balance-method follow_bootstrap_room",
        engine.config.name, engine.config.url, info->dp_size, info->load_balance_method));
  co_return std::string();
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
  // One that was away may be another when it is back.
  if (why.empty() && (!engine.healthy || engine.failed_probes > 0)) why = co_await unfit(engine);
  for (dialects::EngineModel& model : engine.models) {
    if (engine.context_length > 0) model.context_length = engine.context_length;
  }
  if (why.empty() && engine.bootstrap) {
    if (const Status asked = co_await ask_mooncake(engine); !asked) why = asked.error().message;
  }
  const bool good = why.empty();
  engine.failed_probes = good ? 0 : engine.failed_probes + 1;
  const bool healthy = good || (engine.healthy && engine.failed_probes < kFailedProbesMax);
  if (healthy != engine.healthy || !engine.probed || (!healthy && why != engine.why)) {
    log_(healthy ? fmt::format("engine {} ({}) serves {} models", engine.config.name,
                               engine.config.url, engine.models.size())
                 : fmt::format("engine {} ({}) is not usable: {}", engine.config.name,
                               engine.config.url, why));
  }
  engine.healthy = healthy;
  engine.why = std::move(why);
  engine.probed = true;
  if (good && !stopping_ && !engine.removed) co_await read_loads(engine);
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
    for (RankUse& use : engine.use)
      use.at_report = use.running;
    if (!engine.loads.empty()) break;
  }
  learn_ranks(engine);
}

// Reports say how many ranks there are; one that says nothing leaves it as it was.
void EngineSet::learn_ranks(Engine& engine) {
  std::uint32_t ranks = engine.loads.empty() ? engine.ranks : 1;
  for (const dialects::RankLoad& load : engine.loads)
    ranks = std::max(ranks, std::min(load.rank, kRanksMax - 1) + 1);
  if (!engine.mooncake_engines.empty())
    ranks = std::max(ranks, std::min(engine.mooncake_engines.back().rank, kRanksMax - 1) + 1);
  engine.ranks = ranks;
  if (ranks > engine.use.size()) engine.use.resize(ranks);
  if (prefixes_ != nullptr && !engine.removed) prefixes_->has_ranks(engine.config.id, ranks);
}

bool EngineSet::has_choice(std::string_view model) const {
  std::uint32_t places = 0;
  for (const auto& engine : engines_)
    places += engine->serves(model) ? engine->ranks : 0;
  return places > 1;
}

bool EngineSet::has_encoders(const Engine& computes, std::string_view model) const {
  return std::ranges::any_of(engines_, [&](const auto& engine) {
    return engine->config.role == EngineRole::kEncode &&
           engine->config.kind == computes.config.kind && engine->serves(model);
  });
}

Task<std::optional<RenderedBy>> EngineSet::render(std::string_view model, dialects::WireApi api,
                                                  std::string body, PromptTraits traits) {
  const auto able = std::ranges::find_if(engines_, [&](const auto& engine) {
    const bool is_told = engine->config.kind == dialects::EngineKind::kVllm || !traits.apart;
    return is_told && !engine->miscounts[traits.tools ? 1 : 0] && engine->healthy &&
           engine->serves(model) && prefixes_->has_events(engine->config.id) &&
           !render_path(engine->dialect(), api).empty() && !engine->breaker.busy(clock_.now());
  });
  if (able == engines_.end()) co_return std::nullopt;
  const auto engine = *able;
  const Instant deadline = clock_.now() + kRenderTimeout;
  auto headers = credentials(*engine);
  headers.push_back({"content-type", "application/json"});
  const auto call =
      engine->upstream->call({"POST", std::string(render_path(engine->dialect(), api)),
                              std::move(headers), std::move(body)});
  auto text = co_await read_answer(*call, deadline);
  auto prompt = text ? dialects::parse_rendered(*text) : std::nullopt;
  if (prompt) co_return RenderedBy{std::move(*prompt), engine};
  if (!std::exchange(engine->told_no_render, true))
    log_(fmt::format(
        "engine {} ({}) does not turn prompts into token ids by {}: {}; its KV events can't be "
        "matched with prompts",
        engine->config.name, engine->config.url, render_path(engine->dialect(), api),
        text ? "the answer has no token_ids of one prompt" : text.error().message));
  co_return std::nullopt;
}

void EngineSet::rendered_as(Engine& engine, PromptTraits traits, std::uint64_t told,
                            std::uint64_t computed) {
  if (told == computed || std::exchange(engine.miscounts[traits.tools ? 1 : 0], true)) return;
  log_(fmt::format(
      "engine {} ({}) says {} tokens of a prompt {} tools and computes {}: such prompts are looked "
      "up by what was sent there",
      engine.config.name, engine.config.url, told, traits.tools ? "with" : "without", computed));
}

void EngineSet::tell_no_blocks(Engine& prefill) {
  if (std::exchange(prefill.told_no_blocks, true)) return;
  log_(fmt::format(
      "prefill engine {} ({}) names no blocks in its replies, so that prompts are computed "
      "twice; start it with --kv-transfer-config of the NIXL connector, or give it "
      "connector=mooncake if it has that one",
      prefill.config.name, prefill.config.url));
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
  for (const auto& engine : engines_) {
    if (engine->config.role != EngineRole::kDecode || !splits(engine->pd(), wanted.api) ||
        !usable(*engine, wanted.model, wanted.api))
      continue;
    std::string why =
        fmt::format("no prefill engine of the model {} can take the request now", wanted.model);
    for (const auto& other : engines_) {
      if (other->config.role != EngineRole::kPrefill || !other->healthy ||
          other->config.kind != engine->config.kind || other->version == engine->version)
        continue;
      why += fmt::format(" ({} runs version {}, {} runs {})", other->config.name, other->version,
                         engine->config.name, engine->version);
      break;
    }
    return {kUnavailable, std::move(why), {}, {}};
  }
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
