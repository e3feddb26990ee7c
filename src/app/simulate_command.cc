// `penstock simulate`: a trace or a made-up workload through the routing policies in virtual time.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <filesystem>
#include <optional>

#include "app/commands.h"
#include "app/console.h"
#include "app/environment.h"
#include "app/suggest.h"
#include "app/text_layout.h"
#include "app/values.h"
#include "core/routing/profile.h"
#include "evaluate/generate.h"
#include "io/files/files.h"
#include "sim/html_report.h"
#include "sim/suite.h"

namespace penstock {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

constexpr Bytes kTraceFileMax{std::int64_t{4} << 30};
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

Result<routing::Profile> load_profile(const Options& o) {
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

Result<evaluate::Trace> load_trace(const Options& o, Duration duration) {
  if (o.words.empty())
    return evaluate::generate(o.sim_workload, {.requests_per_second = o.sim_rate,
                                               .seconds = routing::to_seconds(duration),
                                               .seed = o.sim_seed});
  TRY(const auto text, read_file(o.words[0], kTraceFileMax));
  auto trace = evaluate::read_trace(text);
  if (!trace) return std::unexpected(std::move(trace).error().within(o.words[0]));
  if (trace->requests.empty())
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} holds no requests", o.words[0]));
  return trace;
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

Result<sim::ClusterOptions> cluster_options(const Options& o) {
  sim::ClusterOptions c;
  TRY_STATUS(known_policy(o.sim_policy));
  c.prefill_policy = o.sim_policy;
  c.decode_policy = o.sim_decode_policy.empty() ? o.sim_policy : o.sim_decode_policy;
  TRY_STATUS(known_policy(c.decode_policy));
  c.front.on = o.sim_queue == "on";
  c.cache_scope = o.sim_cache == "engine" ? sim::CacheScope::kEngine : sim::CacheScope::kCluster;
  c.cache_blocks = o.sim_cache_blocks;
  c.cache_ttl = o.sim_cache_ttl;
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
  c.warmup = o.sim_warmup;
  c.seed = o.sim_seed;
  return c;
}

std::string percent(double share) {
  return fmt::format("{:.2f} %", 100 * share);
}

std::string report_table(const sim::Report& r, double copies) {
  const auto ms = [](double s) { return fmt::format("{:.1f} ms", 1e3 * s); };
  return table(
      {{"policy", r.prefill_policy + " / " + r.decode_policy},
       {"load",
        fmt::format(
            "{:.4g} copies, {:.4g} requests a second", copies,
            r.measured_seconds > 0 ? static_cast<double>(r.arrivals) / r.measured_seconds : 0)},
       {"arrivals", fmt::format("{} measured in {:.0f} s", r.arrivals, r.measured_seconds)},
       {"service level",
        fmt::format("{}: {} served in time, {} refused", r.meets_slo() ? "met" : "missed",
                    percent(r.served_share()), r.refused)},
       {"first token", fmt::format("p50 {}, p90 {}, p99 {}", ms(r.ttft.quantile(0.5)),
                                   ms(r.ttft.quantile(0.9)), ms(r.ttft.quantile(0.99)))},
       {"token gap",
        fmt::format("p50 {}, p99 {}", ms(r.gaps.quantile(0.5)), ms(r.gaps.quantile(0.99)))},
       {"hit rate", percent(r.hit_rate())},
       {"prefill busy", percent(r.prefill_busy)},
       {"most over mean",
        fmt::format("prefill {:.2f}, decode requests {:.2f}, decode KV {:.2f}",
                    r.prefill_quota.mean(), r.decode_requests.mean(), r.decode_kv.mean())},
       {"preemptions", std::to_string(r.preemptions)},
       {"failures",
        fmt::format("{} of engines, {} requests placed anew", r.failures, r.placed_anew)},
       {"digest", fmt::format("{:016x}", r.digest)}});
}

std::string suite_table(const sim::SuiteResult& r) {
  std::vector<std::vector<std::string>> rows = {
      {"policy", "queue", "copies", "without", "efficiency", "vs offline", "p50", "p99", "hits"}};
  for (const sim::PolicyResult& p : r.policies)
    rows.push_back(
        {p.policy, p.queue ? fmt::format("{:.0f} steps", p.ahead_steps) : "no",
         fmt::format("{:.2f}", p.copies), fmt::format("{:.2f}", p.copies_alone),
         fmt::format("{:.3f}", p.efficiency), fmt::format("{:.3f}", p.vs_offline_benchmark),
         fmt::format("{:.2f} s", p.report.ttft.quantile(0.5)),
         fmt::format("{:.2f} s", p.report.ttft.quantile(0.99)), percent(p.report.hit_rate())});
  return fmt::format(
      "bound {:.2f} copies ({:.1f} requests a second), best clairvoyant schedule {:.2f}, "
      "steady-state offline benchmark {:.2f}\n{}digest {:016x}\n",
      r.bound_copies, r.bound_requests_per_second, r.clairvoyant_copies, r.benchmark.copies,
      table(rows, {false, false, true, true, true, true, true, true, true}), r.digest);
}

sim::LoadPlan load_plan(const Options& o) {
  sim::LoadPlan plan;
  plan.warmup = o.sim_warmup;
  plan.duration = o.sim_warmup + o.sim_seconds;
  plan.seed = o.sim_seed;
  plan.tolerance = o.sim_tolerance;
  if (is_terminal(stderr))
    plan.progress = [](std::string_view what, double copies) {
      fmt::print(stderr, "\r\033[Ksimulate: {} at {:.2f} copies", what, copies);
    };
  return plan;
}

void end_progress(const sim::LoadPlan& plan) {
  if (plan.progress) fmt::print(stderr, "\r\033[K");
}

Result<int> run_suite(const Options& o, const routing::Profile& profile,
                      const evaluate::Trace& trace, const sim::ClusterOptions& cluster) {
  const sim::SuiteOptions suite{.plan = load_plan(o), .base = cluster};
  auto result = sim::run_balance_suite(profile, trace, suite);
  end_progress(suite.plan);
  if (!result) return std::unexpected(std::move(result).error());
  return print_data(o.json ? sim::to_json(*result) : suite_table(*result));
}

// The quick forms: a quarter of the ranks (unless said otherwise) and two minutes.
Options quickly(Options o) {
  if (o.sim_ranks == 0) o.sim_ranks = 16;
  o.sim_warmup = std::chrono::seconds(60);
  o.sim_seconds = std::chrono::seconds(120);
  o.sim_tolerance = std::max(o.sim_tolerance, 0.02);
  return o;
}

}  // namespace

Result<int> run_simulate(const Options& options) {
  const Options o = options.sim_quick ? quickly(options) : options;
  TRY(const auto profile, load_profile(o));
  const sim::LoadPlan plan = load_plan(o);
  TRY(const auto trace, load_trace(o, plan.duration));
  TRY(auto cluster, cluster_options(o));
  if (!o.sim_suite.empty()) return run_suite(o, profile, trace, cluster);
  double copies = o.sim_load;
  json::object found;
  if (o.sim_find_load) {
    auto bound = sim::bound_of(profile, trace, plan, {.slo = cluster.slo});
    if (!bound) return std::unexpected(std::move(bound).error());
    auto load = sim::policy_load(profile, trace, plan, cluster, *bound);
    end_progress(plan);
    if (!load) return std::unexpected(std::move(load).error());
    const auto benchmark =
        sim::offline_benchmark(profile, trace, plan, cluster.slo, std::max(*bound, 0.01));
    copies = *load;
    found = {{"bound_copies", *bound},
             {"efficiency", *bound > 0 ? copies / *bound : 0},
             {"vs_offline_benchmark", benchmark.copies > 0 ? copies / benchmark.copies : 0}};
    if (copies <= 0)
      return fail(ErrorCode::kInvalidArgument,
                  "no load meets the service level with this policy and profile", "find-load");
  }
  const auto arrivals = sim::arrivals_of(trace, plan, copies);
  if (arrivals.empty())
    return fail(ErrorCode::kInvalidArgument, "nobody arrives: raise --load, --rate or --seconds",
                "load");
  std::optional<ProgressBar> bar(std::in_place, "simulate", 100);
  cluster.progress = [&bar](double share) { bar->update(static_cast<std::size_t>(100 * share)); };
  TRY(const auto report, sim::simulate(profile, trace, arrivals, cluster));
  bar.reset();
  if (!o.sim_html.empty())
    TRY_STATUS(write_file_atomically(
        o.sim_html, sim::html_report(report, fmt::format("{}, {:.4g} copies, {}", profile.name,
                                                         copies, report.prefill_policy))));
  if (!o.json) {
    std::string text = report_table(report, copies);
    if (o.sim_find_load)
      text += fmt::format(
          "efficiency {:.3f} of the bound ({:.2f} copies), {:.3f} of the offline "
          "benchmark\n",
          found["efficiency"].as_double(), found["bound_copies"].as_double(),
          found["vs_offline_benchmark"].as_double());
    return print_data(text);
  }
  json::object object = json::parse(sim::to_json(report)).as_object();
  object["copies"] = copies;
  for (const auto& [key, value] : found)
    object[key] = value;
  return print_data(json::serialize(object));
}

}  // namespace penstock
