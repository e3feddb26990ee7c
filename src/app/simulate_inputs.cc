#include "app/simulate_inputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "app/console.h"
#include "app/environment.h"
#include "app/suggest.h"
#include "app/values.h"
#include "evaluate/generate.h"
#include "io/files/files.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kTraceFileMax{std::int64_t{4} << 30};
constexpr std::int64_t kTraceLeastUs = 1'000'000;
constexpr Bytes kProfileFileMax{1 << 20};
constexpr std::string_view kDefaultProfile = "profiles/v41-flash-64p-64d.json";

// Beside the program, or in the source tree above its build folder.
std::string bundled_profile() {
  const Environment environment = read_environment();
  std::error_code error;
  for (fs::path folder = fs::path(environment.executable).parent_path();;
       folder = folder.parent_path()) {
    if (fs::exists(folder / kDefaultProfile, error)) return (folder / kDefaultProfile).string();
    if (!folder.has_relative_path()) return std::string(kDefaultProfile);
  }
}

// TIME=KIND:POOL:ENGINE, as in 300s=fail:prefill:0.
Result<sim::EngineChange> parse_change(const Assignment& given) {
  const auto wrong = [&] {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("\"{}={}\": TIME=fail|drain|join:prefill|decode:ENGINE is expected, as "
                            "in 300s=fail:prefill:0",
                            given.name, given.value),
                "change");
  };
  const auto at = parse_duration(given.name);
  const std::size_t first = given.value.find(':');
  const std::size_t second = first == std::string::npos ? first : given.value.find(':', first + 1);
  if (!at || second == std::string::npos) return wrong();
  const auto kind = std::string_view(given.value).substr(0, first);
  const auto pool = std::string_view(given.value).substr(first + 1, second - first - 1);
  const auto engine = parse_count(std::string_view(given.value).substr(second + 1));
  if (!engine || *engine < 0 || (pool != "prefill" && pool != "decode")) return wrong();
  sim::EngineChange change{.at = *at,
                           .pool = pool == "prefill" ? sim::Pool::kPrefill : sim::Pool::kDecode,
                           .engine = static_cast<std::size_t>(*engine)};
  if (kind == "fail")
    change.kind = sim::ChangeKind::kFail;
  else if (kind == "drain")
    change.kind = sim::ChangeKind::kDrain;
  else if (kind == "join")
    change.kind = sim::ChangeKind::kJoin;
  else
    return wrong();
  return change;
}

Status known_policy(const std::string& name) {
  std::vector<std::string_view> known(routing::policy_names().begin(),
                                      routing::policy_names().end());
  known.insert(known.begin(), "default");
  if (std::ranges::find(known, name) != known.end()) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("unknown policy {}{}; there are {}", name, did_you_mean(name, known),
                          fmt::join(known, ", ")),
              "policy");
}

}  // namespace

Result<routing::Profile> simulated_profile(const Options& o) {
  const std::string path = o.sim_profile.empty() ? bundled_profile() : o.sim_profile;
  TRY(const auto text, read_file(path, kProfileFileMax));
  auto profile = routing::parse_profile(text);
  if (!profile) return std::unexpected(std::move(profile).error().within(path));
  if (o.sim_ranks > 0) {
    const auto ranks = static_cast<std::int64_t>(o.sim_ranks);
    for (routing::PoolProfile* pool : {&profile->prefill_pool, &profile->decode_pool}) {
      pool->ranks = ranks;
      pool->group_ranks = std::min(pool->group_ranks, ranks);
      pool->host_ranks = std::min(pool->host_ranks, ranks);
    }
  }
  profile->costs.step.base *= o.sim_scale_d;
  profile->costs.step.per_kv_token *= o.sim_scale_f;
  TRY_STATUS(routing::validate(*profile));
  return profile;
}

Result<evaluate::Trace> simulated_trace(const Options& o, Duration duration) {
  if (o.words.empty())
    return evaluate::generate(o.sim_workload, {.requests_per_second = o.sim_rate,
                                               .seconds = routing::to_seconds(duration),
                                               .seed = o.sim_seed});
  TRY(const auto text, read_file(o.words[0], kTraceFileMax));
  auto trace = evaluate::read_trace(text);
  if (!trace) return std::unexpected(std::move(trace).error().within(o.words[0]));
  if (trace->requests.empty())
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} holds no requests", o.words[0]));
  // It is repeated until the time is full.
  if (trace->duration_us < kTraceLeastUs)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} lasts {} us; a load needs a trace of a second at least", o.words[0],
                            trace->duration_us));
  return trace;
}

Result<sim::ClusterOptions> simulated_cluster(const Options& o) {
  sim::ClusterOptions c;
  TRY_STATUS(known_policy(o.sim_policy));
  c.prefill_policy = o.sim_policy;
  c.decode_policy = o.sim_decode_policy.empty() ? o.sim_policy : o.sim_decode_policy;
  TRY_STATUS(known_policy(c.decode_policy));
  c.front.on = o.sim_queue == "on";
  c.cache_scope = o.sim_cache == "engine" ? sim::CacheScope::kEngine : sim::CacheScope::kCluster;
  c.cache_blocks = o.sim_cache_blocks;
  c.cache_ttl = o.sim_cache_ttl;
  c.host = {o.sim_host_blocks, o.sim_host_ttl};
  c.disk = {o.sim_disk_blocks, o.sim_disk_ttl};
  c.gateways = o.sim_gateways;
  c.report_lag = o.sim_report_lag;
  c.report_loss = o.sim_report_loss;
  c.event_lag = o.sim_event_lag;
  c.event_loss = o.sim_event_loss;
  c.zones = o.sim_zones;
  for (const Assignment& given : o.sim_changes) {
    TRY(const auto change, parse_change(given));
    c.changes.push_back(change);
  }
  c.slo.ttft_limit = routing::to_seconds(o.sim_first_token);
  c.slo.ttft_ratio = o.sim_first_token_ratio;
  c.slo.tau = routing::to_seconds(o.sim_token_gap);
  c.slo.missed_share = o.sim_missed_share;
  c.warmup = o.sim_warmup;
  c.seed = o.sim_seed;
  return c;
}

sim::LoadPlan simulated_load(const Options& o) {
  sim::LoadPlan plan;
  plan.warmup = o.sim_warmup;
  plan.duration = o.sim_warmup + o.sim_seconds;
  plan.seed = o.sim_seed;
  plan.tolerance = o.sim_tolerance;
  if (is_terminal(stderr))
    plan.progress = [](std::string_view what, double copies) {
      fmt::print(stderr, "\r\033[K{} at {:.2f} copies", what, copies);
    };
  return plan;
}

void end_progress(const sim::LoadPlan& plan) {
  if (plan.progress) fmt::print(stderr, "\r\033[K");
}

}  // namespace penstock
