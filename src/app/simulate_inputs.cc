#include "app/simulate_inputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "app/console.h"
#include "app/environment.h"
#include "app/option_table.h"
#include "app/suggest.h"
#include "app/values.h"
#include "base/xxh3.h"
#include "evaluate/generate.h"
#include "io/files/files.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kTraceFileMax{std::int64_t{4} << 30};
constexpr std::int64_t kTraceLeastUs = 1'000'000;
constexpr Bytes kProfileFileMax{1 << 20};
constexpr std::string_view kDefaultProfile = "profiles/v41-flash-64p-64d.json";
constexpr std::string_view kSuiteTrace = "shared/traces/mooncake_conversation.jsonl";
constexpr std::string_view kDefaultWorkload = "chat";
constexpr Bytes kProgramFileMax{std::int64_t{4} << 30};

// In a folder above the program, as in the source tree above its build folder; empty: nowhere.
std::string above_program(std::string_view file) {
  const Environment environment = read_environment();
  std::error_code error;
  for (fs::path folder = fs::path(environment.executable).parent_path();;
       folder = folder.parent_path()) {
    if (fs::exists(folder / file, error)) return (folder / file).string();
    if (!folder.has_relative_path()) return {};
  }
}

std::string profile_file(const Options& o) {
  if (!o.sim_profile.empty()) return o.sim_profile;
  std::string bundled = above_program(kDefaultProfile);
  return bundled.empty() ? std::string(kDefaultProfile) : bundled;
}

// Empty: a workload is made up.
std::string trace_file(const Options& o) {
  if (!o.words.empty()) return o.words[0];
  return o.sim_suite.empty() || !o.sim_workload.empty() ? "" : above_program(kSuiteTrace);
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

// NAME=SHARE, and after colons weight and priority.
Result<sim::TenantShare> parse_tenant(const Assignment& given) {
  sim::TenantShare tenant{.name = given.name};
  std::string_view rest = given.value;
  double priority = 0;
  for (double* field : {&tenant.share, &tenant.weight, &priority}) {
    const std::string_view part = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    if (part.empty() && field != &tenant.share) break;
    auto number = parse_number(part);
    if (!number)
      return std::unexpected(
          std::move(number).error().within(fmt::format("--tenant {}={}", given.name, given.value)));
    *field = *number;
  }
  if (!rest.empty() || !(std::abs(priority) <= 1000) || priority != std::floor(priority))
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("\"{}={}\": NAME=SHARE:WEIGHT:PRIORITY is expected, the priority a whole "
                    "number of at most 1000, as in batch=0.5:1:-1",
                    given.name, given.value),
        "tenant");
  tenant.priority = static_cast<int>(priority);
  return tenant;
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

Options with_simulated_times(Options o) {
  const bool suite = !o.sim_suite.empty();
  if (o.sim_seconds < Duration::zero()) o.sim_seconds = std::chrono::seconds(suite ? 3600 : 600);
  if (o.sim_warmup < Duration::zero()) o.sim_warmup = std::chrono::seconds(suite ? 600 : 120);
  return o;
}

Result<std::string> simulated_identity(const Options& o) {
  std::string identity = PENSTOCK_VERSION;
  const auto add = [&](std::string_view name, std::string_view bytes) {
    identity += fmt::format(", {} {:016x}", name, xxh3().hash(bytes.data(), bytes.size()));
  };
  TRY(const auto program, read_file(read_environment().executable, kProgramFileMax));
  add("program", program);
  TRY(const auto profile, read_file(profile_file(o), kProfileFileMax));
  add("profile", profile);
  std::string trace;
  if (const std::string path = trace_file(o); !path.empty()) {
    TRY(trace, read_file(path, kTraceFileMax));
  }
  add("trace", trace);
  // Not those that say how it is run and shown, and which parts.
  std::string options;
  for (const OptionInfo* row : flags_of(Command::kSimulate)) {
    constexpr std::array<std::string_view, 7> kNoMatter = {"json", "log-level", "profile", "jobs",
                                                           "only", "runs",      "html"};
    if (std::ranges::find(kNoMatter, row->flag) == kNoMatter.end())
      options += fmt::format("{}={}\n", row->flag, option_text(o, *row));
  }
  add("options", options);
  return identity;
}

Result<routing::Profile> simulated_profile(const Options& o) {
  const std::string path = profile_file(o);
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
  const std::string path = trace_file(o);
  if (path.empty())
    return evaluate::generate(
        o.sim_workload.empty() ? kDefaultWorkload : std::string_view(o.sim_workload),
        {.requests_per_second = o.sim_rate,
         .seconds = routing::to_seconds(duration),
         .seed = o.sim_seed});
  TRY(const auto text, read_file(path, kTraceFileMax));
  auto trace = evaluate::read_trace(text);
  if (!trace) return std::unexpected(std::move(trace).error().within(path));
  if (trace->requests.empty())
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} holds no requests", path));
  // It is repeated until the time is full.
  if (trace->duration_us < kTraceLeastUs)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} lasts {} us; a load needs a trace of a second at least", path,
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
  for (const Assignment& given : o.sim_tenants) {
    TRY(auto tenant, parse_tenant(given));
    c.tenants.push_back(std::move(tenant));
  }
  c.loads_through_decode = o.sim_loads == "spread";
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
