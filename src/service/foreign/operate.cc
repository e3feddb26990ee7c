// What operators see of engines and ask of them.
#include <fmt/format.h>
#include <algorithm>
#include <utility>

#include "core/dialects/json_body.h"
#include "service/foreign/engine_set.h"

namespace penstock::foreign {
namespace {

using dialects::quoted;
using enum ErrorCode;

constexpr Duration kExpertsTimeout = std::chrono::seconds(30);  // a dump writes a file

std::string_view name_of(EngineRole role) {
  switch (role) {
    case EngineRole::kMixed:
      return "mixed";
    case EngineRole::kPrefill:
      return "prefill";
    case EngineRole::kDecode:
      return "decode";
    case EngineRole::kEncode:
      return "encode";
  }
  return {};
}

std::string_view name_of(dialects::Breaker::State state) {
  using enum dialects::Breaker::State;
  return state == kClosed ? "closed" : state == kOpen ? "open" : "trying";
}

std::string as_json(const Engine& engine, bool drains, Instant now) {
  std::string models;
  for (const dialects::EngineModel& model : engine.models)
    models += (models.empty() ? "" : ",") + quoted(model.id);
  return fmt::format(
      R"({{"name":{},"engine":"{}","url":{},"role":"{}","version":{},"healthy":{},"why":{},)"
      R"("draining":{},"breaker":"{}","busy":{},"models":[{}],"ranks":{},"running":{},)"
      R"("load":{},"requests":{}}})",
      quoted(engine.config.name), engine.dialect().name, quoted(engine.config.url),
      name_of(engine.config.role), engine.version.empty() ? "null" : quoted(engine.version),
      engine.healthy, engine.why.empty() ? "null" : quoted(engine.why), drains,
      name_of(engine.breaker.state(now)), engine.breaker.busy(now), models, engine.ranks,
      engine.running, engine.load(), engine.requests);
}

}  // namespace

std::string EngineSet::as_json() const {
  std::string all;
  for (const auto& engine : engines_)
    all += (all.empty() ? "" : ",") + foreign::as_json(*engine, drains(*engine), clock_.now());
  return fmt::format(R"({{"engines":[{}]}})", all);
}

Task<Result<std::string>> EngineSet::operate(std::string_view name, std::string action) {
  const auto found =
      std::ranges::find(engines_, name, [](const auto& engine) { return engine->config.name; });
  if (found == engines_.end())
    co_return fail(kNotFound,
                   fmt::format("there is no engine {}; GET /admin/engines lists them", name));
  const auto engine = *found;
  if (action == "drain" || action == "resume") {
    if (switches_ == nullptr) co_return fail(kUnsupported, "engines can't be drained here");
    switches_->set_drains(engine->config.id, action == "drain");
    co_return foreign::as_json(*engine, drains(*engine), clock_.now());
  }
  constexpr std::string_view kExperts = "experts/";
  const std::string_view verb =
      action.starts_with(kExperts) ? std::string_view(action).substr(kExperts.size()) : "";
  if (verb != "start" && verb != "stop" && verb != "dump")
    co_return fail(kNotFound,
                   "what can be asked of an engine is drain, resume, and of SGLang experts/start, "
                   "experts/stop, experts/dump");
  if (engine->config.kind != dialects::EngineKind::kSglang)
    co_return fail(kUnsupported,
                   fmt::format("{} is no SGLang server: it records no expert loads on request",
                               engine->config.name));
  const auto call = engine->upstream->call(
      {"POST", fmt::format("/{}_expert_distribution_record", verb), credentials(*engine), {}});
  CO_TRY(const std::string said, co_await read_answer(*call, clock_.now() + kExpertsTimeout));
  co_return fmt::format(R"({{"engine":{},"said":{}}})", quoted(engine->config.name), quoted(said));
}

}  // namespace penstock::foreign
