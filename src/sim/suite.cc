#include "sim/suite.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "evaluate/generate.h"
#include "sim/block_cache.h"
#include "sim/block_ids.h"
#include "sim/event_queue.h"

namespace penstock::sim {
namespace {

using routing::Profile;

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

struct Conditions {
  Profile profile;
  ClusterOptions cluster;
  std::size_t distinct_blocks;  // of the load at the bound
};
struct Variant {
  std::string_view name;
  void (*apply)(Conditions&);
  bool other_bound = false;
};

template <int kPercent>
void small_cache(Conditions& c) {
  // Room for all of them is no limit: below the bound there are no more.
  c.cluster.cache_blocks =
      kPercent >= 100 ? 0 : std::max<std::size_t>(1, c.distinct_blocks * kPercent / 100);
}
template <int kMs>
void late(Conditions& c) {
  c.cluster.report_lag = c.cluster.event_lag = std::chrono::milliseconds(kMs);
}
template <int kGateways>
void several(Conditions& c) {
  c.cluster.gateways = kGateways;
}

// The store's links at a rate at which those of prefill hosts alone are too few.
void slow_store(Conditions& c) {
  c.profile.costs.load[std::to_underlying(KvTier::kCluster)].bytes_per_second /= 40;
}

constexpr Variant kVariants[] = {
    {"step-base-x2", [](Conditions& c) { c.profile.costs.step.base *= 2; }, true},
    {"step-kv-x2", [](Conditions& c) { c.profile.costs.step.per_kv_token *= 2; }, true},
    {"cache-10%", small_cache<10>},
    {"cache-25%", small_cache<25>},
    {"cache-100%", small_cache<100>},
    {"lag-0ms", late<0>},
    {"lag-50ms", late<50>},
    {"lag-500ms", late<500>},
    {"loss-1%", [](Conditions& c) { c.cluster.report_loss = c.cluster.event_loss = 0.01; }},
    {"gateways-1", several<1>},
    {"gateways-4", several<4>},
    {"gateways-16", several<16>},
    {"prefill-on-decode", [](Conditions& c) { c.cluster.prefill_on_decode = true; }, true},
    {"engine-caches", [](Conditions& c) { c.cluster.cache_scope = CacheScope::kEngine; }},
    {"slow-store", slow_store},
    {"slow-store-spread",
     [](Conditions& c) {
       slow_store(c);
       c.cluster.loads_through_decode = true;
     }},
};

struct Yardstick {
  double bound_copies = 0;
  OfflineBenchmark benchmark;
};

Result<Yardstick> yardstick(const Profile& profile, const evaluate::Trace& trace,
                            const SuiteOptions& options, const ClusterOptions& cluster) {
  const LoadPlan& plan = options.plan;
  ClusterOptions named = cluster;
  named.warmup = plan.warmup;
  named.seed = plan.seed;
  const std::string key = "bound, " + run_key(profile, named, plan.duration, plan.tolerance);
  if (plan.memory)
    if (const auto known = plan.memory.recall(key))
      if (const auto n = parse_numbers(*known); n.size() == 4)
        return Yardstick{n[0], {n[1], n[2], n[3]}};
  Yardstick y;
  TRY(y.bound_copies,
      bound_of(profile, trace, plan,
               {.slo = cluster.slo, .prefill_on_decode_ranks = cluster.prefill_on_decode}));
  y.benchmark = offline_benchmark(profile, trace, plan, cluster.slo, y.bound_copies,
                                  cluster.prefill_on_decode);
  if (plan.memory)
    plan.memory.keep(key, print_numbers({y.bound_copies, y.benchmark.copies,
                                         y.benchmark.prefill_copies, y.benchmark.decode_copies}));
  return y;
}

// Its highest load on the whole run, which may be about `expected` (0: nobody knows).
Status judge(const Profile& profile, const evaluate::Trace& trace, const SuiteOptions& options,
             const ClusterOptions& chosen, const Yardstick& against, double expected,
             PolicyResult& result) {
  result.queue = chosen.front.on;
  result.ahead_steps = chosen.front.on ? chosen.front.ahead_steps : 0;
  TRY(const FoundLoad found,
      find_load(profile, trace, options.plan, chosen, against.bound_copies, expected));
  result.copies = found.copies;
  result.figures = found.figures;
  result.requests_per_second =
      found.figures.measured_seconds > 0
          ? static_cast<double>(found.figures.arrivals) / found.figures.measured_seconds
          : 0;
  result.bound_copies = against.bound_copies;
  result.efficiency = against.bound_copies > 0 ? result.copies / against.bound_copies : 0;
  result.vs_offline_benchmark =
      against.benchmark.copies > 0 ? result.copies / against.benchmark.copies : 0;
  if (options.done) options.done(result.policy, result.efficiency);
  return {};
}

// `first`: what the default came to, when that is known.
Status measure(const Profile& profile, const evaluate::Trace& trace, const SuiteOptions& options,
               const Yardstick& against, const PolicyResult* first, PolicyResult& result) {
  const LoadPlan sweep = shorter(options.plan);
  Setting best{};
  double best_load = -1;
  for (const Setting& setting : kSweep) {
    const double hint = first == nullptr ? 0
                        : setting.queue  ? first->copies_swept
                                         : first->copies_alone;
    TRY(const FoundLoad found,
        find_load(profile, trace, sweep, with(options.base, result.policy, setting),
                  against.bound_copies, hint));
    if (!setting.queue) result.copies_alone = found.copies;
    if (found.copies <= best_load) continue;
    best_load = found.copies;
    best = setting;
  }
  result.copies_swept = best_load;
  const double expected = first != nullptr && first->copies_swept > 0
                              ? best_load * first->copies / first->copies_swept
                              : 0;
  return judge(profile, trace, options, with(options.base, result.policy, best), against, expected,
               result);
}

Status measure_variant(const Profile& profile, const evaluate::Trace& trace,
                       const SuiteOptions& options, const Variant& variant,
                       const std::string& policy, std::size_t distinct_blocks, Yardstick against,
                       const PolicyResult* first, PolicyResult& result) {
  Conditions conditions{profile, options.base, distinct_blocks};
  if (!policy.empty())
    conditions.cluster.prefill_policy = conditions.cluster.decode_policy = policy;
  variant.apply(conditions);
  double expected = first == nullptr ? 0 : first->copies;
  if (variant.other_bound) {
    expected /= std::max(against.bound_copies, 1e-9);
    TRY(against, yardstick(conditions.profile, trace, options, conditions.cluster));
    expected *= against.bound_copies;
  }
  return judge(conditions.profile, trace, options, conditions.cluster, against, expected, result);
}

Status affinity_scene(const Profile& profile, const evaluate::Trace& trace,
                      const SuiteOptions& options, AffinityScene& scene) {
  const auto run = [&](const std::string& policy, CacheScope scope) {
    ClusterOptions cluster = options.base;
    cluster.prefill_policy = cluster.decode_policy = policy;
    cluster.cache_scope = scope;
    return run_at(profile, trace, options.plan, cluster, scene.copies);
  };
  TRY(scene.balancer, run("default", CacheScope::kCluster));
  TRY(scene.affinity, run("prefix-affinity", CacheScope::kCluster));
  TRY(scene.affinity_engine_caches, run("prefix-affinity", CacheScope::kEngine));
  return {};
}

std::size_t distinct_blocks_of(const evaluate::Trace& trace,
                               const std::vector<evaluate::Arrival>& arrivals) {
  const BlockIds ids(trace);
  BlockCache all(kUnlimitedBlocks, Duration::max());
  std::vector<std::uint64_t> blocks;
  for (const evaluate::Arrival& arrival : arrivals) {
    ids.of(arrival, blocks);
    all.insert(blocks, {});
  }
  return all.size();
}

// VARIANT and, when it is under a variant's conditions, POLICY.
std::pair<std::string_view, std::string_view> split_part(std::string_view name) {
  const std::size_t slash = std::min(name.find('/'), name.size());
  return {name.substr(0, slash), name.substr(std::min(slash + 1, name.size()))};
}

const Variant* variant_of(std::string_view name) {
  const auto* found = std::ranges::find(kVariants, name, &Variant::name);
  return found == std::end(kVariants) ? nullptr : found;
}

// Names of all parts, or those of `only`.
Result<std::vector<std::string>> parts_of(const SuiteOptions& options) {
  std::vector<std::string> all{"default"};
  for (const auto name : routing::policy_names())
    if (options.policies.empty() ||
        std::ranges::find(options.policies, name) != options.policies.end())
      all.emplace_back(name);
  all.emplace_back(kClairvoyant);
  if (options.with_variants) {
    for (const Variant& variant : kVariants)
      all.emplace_back(variant.name);
    all.emplace_back(kAffinityScene);
    all.emplace_back(kLongPromptScene);
  }
  if (options.only.empty()) return all;
  std::vector<std::string> chosen;
  for (const std::string& name : all)
    if (std::ranges::find(options.only, name) != options.only.end()) chosen.push_back(name);
  for (const std::string& name : options.only) {
    if (std::ranges::find(all, name) != all.end()) continue;
    const auto [variant, policy] = split_part(name);
    const auto& known = routing::policy_names();
    if (!options.with_variants || variant_of(variant) == nullptr ||
        std::ranges::find(known, policy) == known.end())
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("the suite has no part {}; there are {}, and VARIANT/POLICY", name,
                              fmt::join(all, ", ")),
                  "only");
    if (std::ranges::find(chosen, name) == chosen.end()) chosen.push_back(name);
  }
  return chosen;
}

}  // namespace

std::vector<std::string_view> suite_variants() {
  std::vector<std::string_view> names;
  for (const Variant& variant : kVariants)
    names.push_back(variant.name);
  return names;
}

Result<LongPromptScene> long_prompt_scene(const Profile& profile, std::uint64_t seed) {
  constexpr std::int64_t kLongAtUs = 25'000'000;
  constexpr double kBusy = 0.7;
  LoadPlan plan{.duration = std::chrono::seconds(40),
                .warmup = std::chrono::microseconds(kLongAtUs),
                .seed = seed};
  TRY(auto trace,
      evaluate::generate("poisson", {.requests_per_second = 20, .seconds = 120, .seed = seed}));
  const OfflineBenchmark all = offline_benchmark(profile, trace, plan, {}, 1);
  auto arrivals = arrivals_of(trace, plan, kBusy * all.copies);
  const ClusterOptions options{.warmup = plan.warmup, .seed = seed};
  LongPromptScene scene;
  TRY(const Report without, simulate(profile, trace, arrivals, options));
  trace.requests.push_back({.prompt_tokens = 262'144, .output_tokens = 100});
  const evaluate::Arrival long_one{kLongAtUs, static_cast<std::uint32_t>(trace.requests.size() - 1),
                                   0};
  arrivals.insert(std::ranges::lower_bound(arrivals, kLongAtUs, {}, &evaluate::Arrival::at_us),
                  long_one);
  TRY(const Report with, simulate(profile, trace, arrivals, options));
  scene.p99_without = without.ttft.quantile(0.99);
  scene.p99_with = with.ttft.quantile(0.99);
  return scene;
}

Result<SuiteResult> run_balance_suite(const Profile& profile, const evaluate::Trace& trace,
                                      const SuiteOptions& options) {
  TRY_STATUS(routing::validate(profile));
  TRY(const auto parts, parts_of(options));
  SuiteResult result;
  const LoadPlan sweep = shorter(options.plan);
  result.seconds = routing::to_seconds(options.plan.duration - options.plan.warmup);
  result.sweep_seconds = routing::to_seconds(sweep.duration - sweep.warmup);
  TRY(const Yardstick against, yardstick(profile, trace, options, options.base));
  result.bound_copies = against.bound_copies;
  result.benchmark = against.benchmark;
  const auto arrivals = arrivals_of(trace, options.plan, result.bound_copies);
  const BoundLoad load =
      bound_load(profile, trace, arrivals, options.plan.warmup, options.base.slo);
  result.bound_hit_rate = load.prompt_tokens > 0 ? load.hit_tokens / load.prompt_tokens : 0;
  result.bound_requests_per_second =
      static_cast<double>(load.requests.size()) /
      routing::to_seconds(options.plan.duration - options.plan.warmup);
  const bool small_caches = std::ranges::any_of(
      parts, [](const std::string& name) { return name.starts_with("cache-"); });
  const std::size_t distinct = small_caches ? distinct_blocks_of(trace, arrivals) : std::size_t{0};

  // Every part writes its own result; which come first depends on `run_all` only. The default goes
  // before them: searches of the others begin at what it came to.
  std::vector<std::function<void()>> first_work;
  std::vector<std::function<void()>> work;
  std::vector<Status> outcomes(parts.size());
  result.policies.reserve(parts.size());
  result.variants.reserve(parts.size());
  const PolicyResult* first = nullptr;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string& name = parts[i];
    const auto [variant_name, under_it] = split_part(name);
    Status& outcome = outcomes[i];
    if (const Variant* variant = variant_of(variant_name)) {
      PolicyResult& into = result.variants.emplace_back();
      into.policy = name;
      work.push_back([&, variant, policy = std::string(under_it)] {
        outcome = measure_variant(profile, trace, options, *variant, policy, distinct, against,
                                  first, into);
      });
    } else if (name == kClairvoyant) {
      first_work.push_back([&] {
        auto best =
            clairvoyant_load(profile, trace, options.plan, options.base.slo, result.bound_copies);
        if (!best) {
          outcome = std::unexpected(std::move(best).error());
          return;
        }
        result.clairvoyant_copies = *best;
        if (options.done) options.done(kClairvoyant, *best / std::max(result.bound_copies, 1e-9));
      });
    } else if (name == kAffinityScene) {
      result.affinity.emplace().copies = 0.7 * result.bound_copies;
      work.push_back([&] { outcome = affinity_scene(profile, trace, options, *result.affinity); });
    } else if (name == kLongPromptScene) {
      work.push_back([&] {
        auto scene = long_prompt_scene(profile, options.plan.seed);
        if (scene)
          result.long_prompt = *scene;
        else
          outcome = std::unexpected(std::move(scene).error());
      });
    } else {
      PolicyResult& into = result.policies.emplace_back();
      into.policy = name;
      (name == "default" ? first_work : work).push_back([&] {
        outcome = measure(profile, trace, options, against, first, into);
      });
    }
  }
  const auto run_all = [&](const std::vector<std::function<void()>>& all) {
    if (options.run_all) return options.run_all(all);
    for (const auto& piece : all)
      piece();
  };
  run_all(first_work);
  for (const Status& outcome : outcomes)
    TRY_STATUS(Status(outcome));
  if (!result.policies.empty() && result.policies.front().policy == "default")
    first = result.policies.data();
  run_all(work);
  for (Status& outcome : outcomes)
    TRY_STATUS(std::move(outcome));

  Digest digest;
  digest.add(std::bit_cast<std::uint64_t>(result.bound_copies));
  for (const auto* list : {&result.policies, &result.variants})
    for (const PolicyResult& part : *list) {
      digest.add(std::bit_cast<std::uint64_t>(part.copies));
      digest.add(part.figures.digest);
    }
  if (result.affinity)
    for (const RunFigures* run : {&result.affinity->balancer, &result.affinity->affinity,
                                  &result.affinity->affinity_engine_caches})
      digest.add(run->digest);
  if (result.long_prompt) digest.add(std::bit_cast<std::uint64_t>(result.long_prompt->p99_with));
  result.digest = digest.value();
  return result;
}

}  // namespace penstock::sim
