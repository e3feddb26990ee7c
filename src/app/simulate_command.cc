// `penstock simulate`: a trace or a made-up workload through the routing policies in virtual time.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <functional>
#include <optional>
#include <thread>

#include "app/commands.h"
#include "app/console.h"
#include "app/kept_runs.h"
#include "app/simulate_inputs.h"
#include "app/text_layout.h"
#include "io/files/files.h"
#include "sim/html_report.h"
#include "sim/suite.h"

namespace penstock {
namespace {

namespace json = boost::json;

std::string percent(double share) {
  return fmt::format("{:.2f} %", 100 * share);
}

std::string report_table(const sim::Report& r, double copies) {
  const auto ms = [](double s) { return fmt::format("{:.1f} ms", 1e3 * s); };
  std::vector<std::vector<std::string>> rows(
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
  if (r.prompts_on_decode > 0)
    rows.push_back({"prompts", fmt::format("{} computed on decode ranks", r.prompts_on_decode)});
  for (const sim::TenantReport& t : r.tenants)
    rows.push_back({"tenant " + t.name,
                    fmt::format("{} arrivals, {} in time, {} refused, first token p50 {}, p99 {}",
                                t.arrivals, percent(t.in_time_share()), t.refused,
                                ms(t.ttft.quantile(0.5)), ms(t.ttft.quantile(0.99)))});
  return table(rows);
}

std::string suite_table(const sim::SuiteResult& r) {
  std::vector<std::vector<std::string>> rows = {
      {"policy", "queue", "copies", "without", "efficiency", "vs offline", "p50", "p99", "hits"}};
  for (const sim::PolicyResult& p : r.policies)
    rows.push_back({p.policy, p.queue ? fmt::format("{:.0f} steps", p.ahead_steps) : "no",
                    fmt::format("{:.2f}", p.copies), fmt::format("{:.2f}", p.copies_alone),
                    fmt::format("{:.3f}", p.efficiency),
                    fmt::format("{:.3f}", p.vs_offline_benchmark),
                    fmt::format("{:.2f} s", p.figures.ttft_p50),
                    fmt::format("{:.2f} s", p.figures.ttft_p99), percent(p.figures.hit_rate)});
  std::string more;
  if (!r.variants.empty()) {
    std::vector<std::vector<std::string>> variants = {
        {"default, and", "copies", "efficiency", "vs offline", "p50", "p99", "hits"}};
    for (const sim::PolicyResult& p : r.variants)
      variants.push_back(
          {p.policy, fmt::format("{:.2f}", p.copies), fmt::format("{:.3f}", p.efficiency),
           fmt::format("{:.3f}", p.vs_offline_benchmark),
           fmt::format("{:.2f} s", p.figures.ttft_p50), fmt::format("{:.2f} s", p.figures.ttft_p99),
           percent(p.figures.hit_rate)});
    more += table(variants, {false, true, true, true, true, true, true});
  }
  if (r.affinity)
    more += fmt::format(
        "at {:.2f} copies hits and most over mean of prefill: default {} {:.2f}, prefix affinity "
        "{} "
        "{:.2f}, with engines' own caches {} {:.2f}\n",
        r.affinity->copies, percent(r.affinity->balancer.hit_rate),
        r.affinity->balancer.prefill_balance, percent(r.affinity->affinity.hit_rate),
        r.affinity->affinity.prefill_balance, percent(r.affinity->affinity_engine_caches.hit_rate),
        r.affinity->affinity_engine_caches.prefill_balance);
  if (r.long_prompt)
    more += fmt::format(
        "one prompt of 256K among short ones: their first tokens' p99 {:.3f} s, without it {:.3f} "
        "s, "
        "{:.3f} of that\n",
        r.long_prompt->p99_with, r.long_prompt->p99_without, r.long_prompt->ratio());
  return fmt::format(
      "bound {:.2f} copies ({:.1f} requests a second), best clairvoyant schedule {:.2f}, "
      "steady-state offline benchmark {:.2f}\n{}{}digest {:016x}\n",
      r.bound_copies, r.bound_requests_per_second, r.clairvoyant_copies, r.benchmark.copies,
      r.policies.empty() ? ""
                         : table(rows, {false, false, true, true, true, true, true, true, true}),
      more, r.digest);
}

std::vector<std::string> names_in(std::string_view list) {
  std::vector<std::string> names;
  while (!list.empty()) {
    const auto name = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), name.size() + 1));
    if (!name.empty()) names.emplace_back(name);
  }
  return names;
}

// On so many threads, each taking the next piece that nobody has.
void run_all(const std::vector<std::function<void()>>& work, std::size_t threads) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::jthread> running;
  for (std::size_t t = 0; t < std::min(threads, work.size()); ++t)
    running.emplace_back([&] {
      for (std::size_t i = next++; i < work.size(); i = next++)
        work[i]();
    });
}

Result<int> run_suite(const Options& o, const routing::Profile& profile,
                      const evaluate::Trace& trace, const sim::ClusterOptions& cluster) {
  const std::size_t threads =
      o.sim_jobs > 0 ? o.sim_jobs : std::max(1U, std::thread::hardware_concurrency());
  sim::LoadPlan plan = simulated_load(o);
  // No run twice: variants that change nothing are the default's own.
  std::string identity;
  if (!o.sim_runs.empty()) {
    TRY(identity, simulated_identity(o));
  }
  TRY(const auto runs, KeptRuns::open(o.sim_runs, identity));
  if (runs->size() > 0) fmt::print(stderr, "{} runs are known from {}\n", runs->size(), o.sim_runs);
  plan.memory = runs->memory();
  const sim::SuiteOptions suite{.plan = plan,
                                .base = cluster,
                                .with_variants = !o.sim_quick || !o.sim_only.empty(),
                                .only = names_in(o.sim_only),
                                .run_all = [threads](const auto& work) { run_all(work, threads); },
                                .done =
                                    [](std::string_view part, double efficiency) {
                                      fmt::print(stderr, "{}{}: {:.3f} of the bound\n",
                                                 is_terminal(stderr) ? "\r\033[K" : "", part,
                                                 efficiency);
                                    }};
  auto result = sim::run_balance_suite(profile, trace, suite);
  end_progress(suite.plan);
  if (!result) return std::unexpected(std::move(result).error());
  if (const Status written = runs->written(); !written) print_error(written.error());
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
  const Options o = with_simulated_times(options.sim_quick ? quickly(options) : options);
  TRY(const auto profile, simulated_profile(o));
  const sim::LoadPlan plan = simulated_load(o);
  TRY(const auto trace, simulated_trace(o, plan.duration));
  TRY(auto cluster, simulated_cluster(o));
  if (!o.sim_suite.empty()) return run_suite(o, profile, trace, cluster);
  double copies = o.sim_load;
  json::object found;
  if (o.sim_find_load) {
    auto bound =
        sim::bound_of(profile, trace, plan,
                      {.slo = cluster.slo, .prefill_on_decode_ranks = cluster.prefill_on_decode});
    if (!bound) return std::unexpected(std::move(bound).error());
    auto load = sim::policy_load(profile, trace, plan, cluster, *bound);
    end_progress(plan);
    if (!load) return std::unexpected(std::move(load).error());
    const auto benchmark = sim::offline_benchmark(
        profile, trace, plan, cluster.slo, std::max(*bound, 0.01), cluster.prefill_on_decode);
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
