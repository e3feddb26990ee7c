#include "sim/suite.h"

#include <algorithm>
#include <bit>
#include <boost/json.hpp>

#include <fmt/format.h>

#include "sim/event_queue.h"

namespace penstock::sim {
namespace {

namespace json = boost::json;

struct Setting {
  bool queue;
  double ahead_steps;
};
constexpr Setting kSweep[] = {{false, 0}, {true, 2}, {true, 3}};

ClusterOptions with(ClusterOptions options, const std::string& policy, const Setting& setting) {
  options.prefill_policy = policy;
  options.decode_policy = policy;
  options.front.on = setting.queue;
  if (setting.queue) options.front.ahead_steps = setting.ahead_steps;
  return options;
}

// What the sweep is run on: a quarter of the measured time, and not so exact.
LoadPlan shorter(const LoadPlan& plan) {
  LoadPlan result = plan;
  result.warmup = std::min<Duration>(plan.warmup, std::chrono::seconds(120));
  result.duration =
      result.warmup + std::min<Duration>(plan.duration - plan.warmup,
                                         std::max<Duration>((plan.duration - plan.warmup) / 4,
                                                            std::chrono::seconds(60)));
  result.tolerance = std::max(plan.tolerance, 0.02);
  return result;
}

json::object print(const PolicyResult& p) {
  return {{"policy", p.policy},
          {"queue_in_front", p.queue},
          {"ahead_steps", p.ahead_steps},
          {"copies", p.copies},
          {"copies_without_queue", p.copies_alone},
          {"requests_per_second", p.requests_per_second},
          {"efficiency", p.efficiency},
          {"vs_offline_benchmark", p.vs_offline_benchmark},
          {"served_in_time", p.report.served_share()},
          {"refused", p.report.refused},
          {"ttft_p50_seconds", p.report.ttft.quantile(0.5)},
          {"ttft_p99_seconds", p.report.ttft.quantile(0.99)},
          {"token_gap_p99_seconds", p.report.gaps.quantile(0.99)},
          {"hit_rate", p.report.hit_rate()},
          {"prefill_busy", p.report.prefill_busy},
          {"decode_requests_balance", p.report.decode_requests.mean()},
          {"decode_kv_balance", p.report.decode_kv.mean()},
          {"digest", fmt::format("{:016x}", p.report.digest)}};
}

Result<PolicyResult> measure(const routing::Profile& profile, const evaluate::Trace& trace,
                             const SuiteOptions& options, const std::string& policy,
                             const SuiteResult& so_far) {
  PolicyResult result;
  result.policy = policy;
  const LoadPlan sweep = shorter(options.plan);
  Setting best{};
  double best_load = -1;
  for (const Setting& setting : kSweep) {
    TRY(const double load, policy_load(profile, trace, sweep, with(options.base, policy, setting),
                                       so_far.bound_copies));
    if (!setting.queue) result.copies_alone = load;
    if (load <= best_load) continue;
    best_load = load;
    best = setting;
  }
  result.queue = best.queue;
  result.ahead_steps = best.ahead_steps;
  ClusterOptions chosen = with(options.base, policy, best);
  TRY(result.copies, policy_load(profile, trace, options.plan, chosen, so_far.bound_copies));
  chosen.warmup = options.plan.warmup;
  chosen.seed = options.plan.seed;
  const auto arrivals = arrivals_of(trace, options.plan, result.copies);
  if (!arrivals.empty()) {
    TRY(result.report, simulate(profile, trace, arrivals, chosen));
    result.requests_per_second =
        result.report.measured_seconds > 0
            ? static_cast<double>(result.report.arrivals) / result.report.measured_seconds
            : 0;
  }
  result.efficiency = so_far.bound_copies > 0 ? result.copies / so_far.bound_copies : 0;
  result.vs_offline_benchmark =
      so_far.benchmark.copies > 0 ? result.copies / so_far.benchmark.copies : 0;
  return result;
}

}  // namespace

Result<SuiteResult> run_balance_suite(const routing::Profile& profile, const evaluate::Trace& trace,
                                      const SuiteOptions& options) {
  TRY_STATUS(routing::validate(profile));
  SuiteResult result;
  TRY(result.bound_copies, bound_of(profile, trace, options.plan, {.slo = options.base.slo}));
  result.benchmark =
      offline_benchmark(profile, trace, options.plan, options.base.slo, result.bound_copies);
  const auto arrivals = arrivals_of(trace, options.plan, result.bound_copies);
  const BoundLoad load =
      bound_load(profile, trace, arrivals, options.plan.warmup, options.base.slo);
  result.bound_hit_rate = load.prompt_tokens > 0 ? load.hit_tokens / load.prompt_tokens : 0;
  result.bound_requests_per_second =
      static_cast<double>(load.requests.size()) /
      routing::to_seconds(options.plan.duration - options.plan.warmup);
  if (options.with_clairvoyant) {
    TRY(result.clairvoyant_copies,
        clairvoyant_load(profile, trace, options.plan, options.base.slo, result.bound_copies));
  }
  std::vector<std::string> names = options.policies;
  if (names.empty())
    for (const auto name : routing::policy_names())
      names.emplace_back(name);
  names.insert(names.begin(), "default");
  Digest digest;
  digest.add(std::bit_cast<std::uint64_t>(result.bound_copies));
  for (const std::string& name : names) {
    TRY(PolicyResult policy, measure(profile, trace, options, name, result));
    digest.add(std::bit_cast<std::uint64_t>(policy.copies));
    digest.add(policy.report.digest);
    result.policies.push_back(std::move(policy));
  }
  result.digest = digest.value();
  return result;
}

std::string to_json(const SuiteResult& r) {
  json::array policies;
  for (const PolicyResult& p : r.policies)
    policies.push_back(print(p));
  const json::object object{
      {"suite", "balance"},
      {"bound", json::object{{"copies", r.bound_copies},
                             {"requests_per_second", r.bound_requests_per_second},
                             {"hit_rate", r.bound_hit_rate}}},
      {"clairvoyant",
       json::object{
           {"copies", r.clairvoyant_copies},
           {"efficiency", r.bound_copies > 0 ? r.clairvoyant_copies / r.bound_copies : 0}}},
      {"offline_benchmark", json::object{{"copies", r.benchmark.copies},
                                         {"prefill_copies", r.benchmark.prefill_copies},
                                         {"decode_copies", r.benchmark.decode_copies}}},
      {"default", r.policies.empty() ? json::object{} : print(r.policies.front())},
      {"policies", policies},
      {"digest", fmt::format("{:016x}", r.digest)}};
  return json::serialize(object);
}

}  // namespace penstock::sim
