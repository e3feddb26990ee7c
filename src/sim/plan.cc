#include "sim/plan.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "sim/block_ids.h"
#include "sim/tiered_cache.h"

namespace penstock::sim {
namespace {

namespace json = boost::json;
using routing::PoolProfile;
using routing::Profile;

constexpr std::int64_t kBucketUs = 10'000'000;  // of the busiest ten seconds
constexpr double kGpusOfLink = 8;
// More than this many times the closed form is not a matter of size.
constexpr std::int64_t kTimesClosedForm = 16;

Profile with_pools(Profile profile, const PoolSize& prefill, const PoolSize& decode) {
  profile.prefill_pool.ranks = prefill.ranks;
  profile.prefill_pool.group_ranks = prefill.group_ranks;
  profile.decode_pool.ranks = decode.ranks;
  profile.decode_pool.group_ranks = decode.group_ranks;
  return profile;
}

std::int64_t whole(double ranks) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(ranks)));
}

// The least size from `low` to `high` ranks that `meets`; 0 when not even `high` does. Looks from
// `guess` on in doubling strides, then between.
Result<std::int64_t> least_size(std::int64_t low, std::int64_t guess, std::int64_t high,
                                const PoolProfile& pool,
                                const std::function<Result<bool>(const PoolSize&)>& meets) {
  const std::int64_t unit = pool.host_ranks;
  std::map<std::int64_t, bool> known;
  const auto ask = [&](std::int64_t hosts) -> Result<bool> {
    const PoolSize size = pool_size(pool, hosts * unit);
    if (const auto at = known.find(size.ranks); at != known.end()) return at->second;
    TRY(const bool met, meets(size));
    known[size.ranks] = met;
    return met;
  };
  std::int64_t none = (low + unit - 1) / unit - 1;  // hosts that are too few
  const std::int64_t most = std::max(none + 1, (high + unit - 1) / unit);
  std::int64_t at = std::clamp((guess + unit - 1) / unit, none + 1, most);
  std::int64_t enough = 0;
  for (std::int64_t stride = 1;; stride *= 2) {
    TRY(const bool met, ask(at));
    if (met) {
      enough = at;
      if (at - 1 <= none) break;
      at = std::max(none + 1, at - stride);
    } else {
      none = at;
      if (enough > 0) break;
      if (at >= most) return 0;
      at = std::min(most, at + stride);
    }
  }
  while (enough - none > 1) {
    const std::int64_t middle = none + (enough - none) / 2;
    TRY(const bool met, ask(middle));
    (met ? enough : none) = middle;
  }
  return pool_size(pool, enough * unit).ranks;
}

Status check_requests(const Profile& profile, const evaluate::Trace& trace) {
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const std::int64_t tokens = trace.requests[i].prompt_tokens + trace.requests[i].output_tokens;
    if (profile.context_tokens_max > 0 && tokens > profile.context_tokens_max)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("request {} of the trace has {} tokens with its answer, and engines "
                              "of the profile {} take {}",
                              i + 1, tokens, profile.name, profile.context_tokens_max));
    if (profile.decode_pool.kv_tokens > 0 && tokens > profile.decode_pool.kv_tokens)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("request {} of the trace has {} tokens with its answer, and a decode "
                              "rank of the profile {} has KV for {}",
                              i + 1, tokens, profile.name, profile.decode_pool.kv_tokens));
  }
  return {};
}

// Sizes that are known not to be enough, or to be enough.
struct Limits {
  std::int64_t prefill_low = 1;
  std::int64_t decode_low = 1;
  std::int64_t prefill_high = std::numeric_limits<std::int64_t>::max();
  std::int64_t decode_high = std::numeric_limits<std::int64_t>::max();
};

class Planner {
 public:
  Planner(const Profile& profile, const evaluate::Trace& trace, const PlanOptions& options)
      : profile_(profile), trace_(trace), options_(options) {}

  Result<PlanCase> size(std::string name, double copies, ClusterOptions cluster,
                        const Limits& limits) {
    PlanCase result;
    result.name = std::move(name);
    const auto arrivals = arrivals_of(trace_, options_.load, copies);
    cluster.warmup = options_.load.warmup;
    cluster.seed = options_.load.seed;
    if (arrivals.empty() ||
        Duration(std::chrono::microseconds(arrivals.back().at_us)) <= cluster.warmup)
      return fail(ErrorCode::kInvalidArgument,
                  "nobody arrives after the warm-up: raise the load or make it longer", "load");
    result.demand = demand_of(profile_, trace_, arrivals, cluster);
    result.closed = closed_form(profile_, result.demand, cluster.slo);
    if (!(result.closed.decode < 1e9))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("an empty decode step takes {:.1f} ms with the profile's moe_lb, so "
                              "no number of ranks gives a token in {:.1f} ms",
                              1e3 * profile_.costs.step.base *
                                  std::max(1.0, profile_.costs.decode_moe.mean),
                              1e3 * cluster.slo.tau),
                  "token-gap");
    cluster.stop_early = true;
    const auto meets = [&](const PoolSize& prefill, const PoolSize& decode) -> Result<bool> {
      if (options_.load.progress)
        options_.load.progress(fmt::format("{}: {} prefill + {} decode ranks", result.name,
                                           prefill.ranks, decode.ranks),
                               copies);
      TRY(const Report report,
          simulate(with_pools(profile_, prefill, decode), trace_, arrivals, cluster));
      return report.meets_slo();
    };
    const PoolSize plenty = pool_size(
        profile_.decode_pool, std::max(limits.decode_low, 2 * whole(result.closed.decode) +
                                                              profile_.decode_pool.host_ranks));
    TRY(const std::int64_t prefill,
        least_size(limits.prefill_low, whole(result.closed.prefill),
                   most(result.closed.prefill, profile_.prefill_pool, limits.prefill_high),
                   profile_.prefill_pool,
                   [&](const PoolSize& size) { return meets(size, plenty); }));
    result.prefill = pool_size(profile_.prefill_pool, prefill);
    if (prefill > 0) {
      TRY(const std::int64_t decode,
          least_size(limits.decode_low, whole(result.closed.decode),
                     std::min(limits.decode_high, plenty.ranks), profile_.decode_pool,
                     [&](const PoolSize& size) { return meets(result.prefill, size); }));
      result.decode = pool_size(profile_.decode_pool, decode);
      if (decode > 0) return result;
    }
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("no number of ranks meets the service level ({}): first token within "
                            "{:.3g} s or {:.3g} times the prompt's own compute, a token in {:.3g} "
                            "ms, {:.3g} % missed",
                            result.name, cluster.slo.ttft_limit, cluster.slo.ttft_ratio,
                            1e3 * cluster.slo.tau, 100 * cluster.slo.missed_share),
                "first-token");
  }

 private:
  static std::int64_t most(double closed, const PoolProfile& pool, std::int64_t high) {
    return std::min(
        {high, Profile::kRanksMax, kTimesClosedForm * (whole(closed) + pool.host_ranks)});
  }

  const Profile& profile_;
  const evaluate::Trace& trace_;
  const PlanOptions& options_;
};

Interconnect interconnect(const Profile& profile, const PlanCase& at) {
  const double bytes = static_cast<double>(profile.kv_bytes_per_token);
  const double busiest = at.demand.kv_peak_over_mean * kGpusOfLink;
  const double prefill = busiest / static_cast<double>(at.prefill.ranks);
  const double prompts = at.demand.prompt_tokens * bytes;
  return {.prefill_in = at.demand.kv_read_bytes * prefill,
          .prefill_out = (prompts + at.demand.kv_new_bytes) * prefill,
          .decode_in = prompts * busiest / static_cast<double>(at.decode.ranks)};
}

json::object print(const Plan& plan, const PlanCase& c) {
  json::object object{
      {"name", c.name},
      {"requests_per_second", c.demand.requests},
      {"prompt_tokens_per_second", c.demand.prompt_tokens},
      {"uncached_tokens_per_second", c.demand.uncached_tokens},
      {"output_tokens_per_second", c.demand.output_tokens},
      {"hit_rate", c.demand.hit_rate()},
      {"requests_running", c.demand.requests_running},
      {"kv_tokens_running", c.demand.kv_tokens_running},
      {"closed_form", json::object{{"prefill_ranks", c.closed.prefill},
                                   {"prefill_ranks_for_work", c.closed.prefill_for_work},
                                   {"prefill_ranks_for_loads", c.closed.prefill_for_loads},
                                   {"decode_ranks", c.closed.decode},
                                   {"decode_ranks_for_work", c.closed.decode_for_work},
                                   {"decode_ranks_for_kv", c.closed.decode_for_kv},
                                   {"decode_ranks_for_requests", c.closed.decode_for_requests}}},
      {"prefill_ranks", c.prefill.ranks},
      {"prefill_group_ranks", c.prefill.group_ranks},
      {"decode_ranks", c.decode.ranks},
      {"decode_group_ranks", c.decode.group_ranks},
      {"prefill_per_decode",
       static_cast<double>(c.prefill.ranks) / static_cast<double>(c.decode.ranks)},
      {"gpus", c.gpus()}};
  if (plan.gpu_hour_price > 0) object["cost_per_hour"] = plan.cost_per_hour(c);
  return object;
}

}  // namespace

Demand demand_of(const Profile& profile, const evaluate::Trace& trace,
                 const std::vector<evaluate::Arrival>& arrivals, const ClusterOptions& options) {
  Demand d;
  if (arrivals.empty()) return d;
  const auto warm = std::chrono::duration_cast<std::chrono::microseconds>(options.warmup).count();
  // As if every engine found what any of them has.
  TieredCache cache(
      cache_tiers(options, Instant{} + std::chrono::microseconds(arrivals.back().at_us)), 1);
  const std::size_t main = options.cache_scope == CacheScope::kEngine ? 0 : kCacheTiers.size() - 1;
  PrefillCoefficients marginal = profile.costs.prefill;
  marginal.base = 0;
  const routing::StepCoefficients& step = profile.costs.step;
  std::map<std::int64_t, double> buckets;
  const BlockIds ids(trace);
  std::vector<std::uint64_t> blocks;
  std::size_t new_blocks = 0;
  std::size_t stored = 0;
  for (const evaluate::Arrival& arrival : arrivals) {
    const evaluate::TraceRequest& t = trace.requests[arrival.request];
    const Instant now = Instant{} + std::chrono::microseconds(arrival.at_us);
    ids.of(arrival, blocks);
    const TierHit found = cache.match(0, blocks, now);
    const std::size_t matched = found.total();
    cache.insert(0, blocks, now);
    stored = std::max(stored, cache.size(main));
    if (arrival.at_us < warm) continue;
    const auto prompt = static_cast<double>(t.prompt_tokens);
    const double hit = std::min(
        static_cast<double>(matched) * static_cast<double>(trace.block_tokens), prompt - 1);
    const auto after = static_cast<double>(t.output_tokens - 1);
    new_blocks += blocks.size() - matched;
    d.requests += 1;
    d.prompt_tokens += prompt;
    d.uncached_tokens += prompt - hit;
    d.load_seconds +=
        load_seconds(profile, trace.block_tokens, found, static_cast<std::int64_t>(hit));
    const std::size_t in_store = found.blocks[kCacheTiers.size() - 1];
    d.kv_read_bytes +=
        std::min(hit, static_cast<double>(in_store) * static_cast<double>(trace.block_tokens)) *
        static_cast<double>(profile.kv_bytes_per_token);
    d.output_tokens += static_cast<double>(t.output_tokens);
    d.prefill_work += routing::prefill_seconds(marginal, prompt - hit, hit);
    d.requests_running += after * options.slo.tau;
    d.kv_tokens_running += after * options.slo.tau * (prompt + after / 2);
    d.decode_work += after * (step.per_request + step.per_kv_token * (prompt + after / 2));
    buckets[arrival.at_us / kBucketUs] += prompt;
  }
  d.seconds = static_cast<double>(arrivals.back().at_us - warm) * 1e-6;
  if (d.seconds <= 0) return d;
  double busiest = 0;
  for (const auto& [bucket, tokens] : buckets)
    busiest = std::max(busiest, tokens);
  const double bucket_mean = d.prompt_tokens * std::min(1.0, kBucketUs * 1e-6 / d.seconds);
  if (bucket_mean > 0) d.kv_peak_over_mean = std::max(1.0, busiest / bucket_mean);
  const double block_bytes =
      static_cast<double>(trace.block_tokens) * static_cast<double>(profile.kv_bytes_per_token);
  d.kv_new_bytes = static_cast<double>(new_blocks) * block_bytes;
  for (double* sum : {&d.requests, &d.prompt_tokens, &d.uncached_tokens, &d.output_tokens,
                      &d.prefill_work, &d.decode_work, &d.requests_running, &d.kv_tokens_running,
                      &d.kv_new_bytes, &d.kv_read_bytes, &d.load_seconds})
    *sum /= d.seconds;
  d.kv_stored_bytes = std::max(static_cast<double>(stored) * block_bytes,
                               d.kv_new_bytes * routing::to_seconds(options.cache_ttl));
  if (options.cache_blocks > 0)
    d.kv_stored_bytes =
        std::min(d.kv_stored_bytes, static_cast<double>(options.cache_blocks) * block_bytes);
  return d;
}

ClosedForm closed_form(const Profile& profile, const Demand& demand, const Slo& slo) {
  ClosedForm c;
  const routing::CostSeeds& costs = profile.costs;
  const double useful = profile.chunk_budget_seconds - costs.prefill.base;
  c.prefill_for_work = demand.prefill_work * std::max(1.0, costs.prefill_moe.mean) *
                       (useful > 0 ? profile.chunk_budget_seconds / useful : 1);
  // A host's ranks share its link, which reads one hit after the other.
  c.prefill_for_loads = demand.load_seconds * static_cast<double>(profile.prefill_pool.host_ranks);
  c.prefill = std::max(c.prefill_for_work, c.prefill_for_loads);
  // Of a step of tau, divided by moe_lb, the base cost does nothing.
  const double share = 1 / std::max(1.0, costs.decode_moe.mean) - costs.step.base / slo.tau;
  c.decode_for_work =
      share > 0 ? demand.decode_work / share : std::numeric_limits<double>::infinity();
  if (profile.decode_pool.kv_tokens > 0)
    c.decode_for_kv = demand.kv_tokens_running / static_cast<double>(profile.decode_pool.kv_tokens);
  if (profile.decode_pool.requests_max > 0)
    c.decode_for_requests =
        demand.requests_running / static_cast<double>(profile.decode_pool.requests_max);
  c.decode = std::max({c.decode_for_work, c.decode_for_kv, c.decode_for_requests});
  return c;
}

PoolSize pool_size(const PoolProfile& pool, std::int64_t ranks) {
  const std::int64_t host = std::max<std::int64_t>(1, pool.host_ranks);
  const std::int64_t widest = std::max<std::int64_t>(1, pool.group_ranks);
  for (std::int64_t n = std::max<std::int64_t>(1, (ranks + host - 1) / host) * host;; n += host) {
    const std::int64_t groups = (n + widest - 1) / widest;
    if (n % groups != 0) continue;
    const std::int64_t group = n / groups;
    if (group % host == 0 || host % group == 0) return {n, group};
  }
}

Result<Plan> plan_deployment(const Profile& profile, const evaluate::Trace& trace,
                             const PlanOptions& options) {
  TRY_STATUS(routing::validate(profile));
  TRY_STATUS(check_requests(profile, trace));
  Planner planner(profile, trace, options);
  Plan plan;
  plan.profile = profile.name;
  plan.slo = options.cluster.slo;
  plan.gpu_hour_price = options.gpu_hour_price;
  plan.kv_ttl_seconds = routing::to_seconds(options.cluster.cache_ttl);
  TRY(plan.base, planner.size("as given", options.copies, options.cluster, {}));
  const PlanCase& base = plan.base;
  ClusterOptions cluster = options.cluster;
  cluster.warmup = options.load.warmup;
  cluster.seed = options.load.seed;
  TRY(plan.report, simulate(with_pools(profile, base.prefill, base.decode), trace,
                            arrivals_of(trace, options.load, options.copies), cluster));
  plan.per_eight_gpus = interconnect(profile, base);
  plan.kv_read_bytes = base.demand.kv_read_bytes * base.demand.kv_peak_over_mean;
  plan.kv_write_bytes = base.demand.kv_new_bytes * base.demand.kv_peak_over_mean;
  if (!options.sensitivities) return plan;

  const Limits less{.prefill_high = base.prefill.ranks, .decode_high = base.decode.ranks};
  const Limits more{.prefill_low = base.prefill.ranks, .decode_low = base.decode.ranks};
  ClusterOptions quarter = options.cluster;
  const double block_bytes = static_cast<double>(trace.block_tokens * profile.kv_bytes_per_token);
  quarter.cache_blocks = static_cast<std::size_t>(
      std::max(1.0, std::ceil(base.demand.kv_stored_bytes / 4 / std::max(1.0, block_bytes))));
  ClusterOptions uncached = options.cluster;
  uncached.cache_ttl = Duration::zero();
  ClusterOptions sooner = options.cluster;
  sooner.slo.ttft_limit /= 2;
  sooner.slo.ttft_ratio = 1 + (sooner.slo.ttft_ratio - 1) / 2;
  ClusterOptions faster = options.cluster;
  faster.slo.tau *= 0.8;
  struct Case {
    const char* name;
    double copies;
    const ClusterOptions* cluster;
    Limits limits;
  };
  for (const Case& c :
       {Case{"load -20 %", 0.8, &options.cluster, less},
        Case{"load +20 %", 1.2, &options.cluster, more},
        Case{"a quarter of the KV store", 1, &quarter, {}}, Case{"no KV store", 1, &uncached, {}},
        Case{"first token in half the time", 1, &sooner, {}},
        Case{"a token in 0.8 of the time", 1, &faster, {}}}) {
    TRY(auto sized, planner.size(c.name, options.copies * c.copies, *c.cluster, c.limits));
    plan.sensitivities.push_back(std::move(sized));
  }
  return plan;
}

std::string to_json(const Plan& plan) {
  json::array cases;
  for (const PlanCase& c : plan.sensitivities)
    cases.push_back(print(plan, c));
  const Interconnect& link = plan.per_eight_gpus;
  json::object object{
      {"profile", plan.profile},
      {"service_level", json::object{{"first_token_seconds", plan.slo.ttft_limit},
                                     {"first_token_times_own_compute", plan.slo.ttft_ratio},
                                     {"token_gap_seconds", plan.slo.tau},
                                     {"missed_share", plan.slo.missed_share}}},
      {"plan", print(plan, plan.base)},
      {"simulated", json::object{{"served_in_time", plan.report.served_share()},
                                 {"ttft_p99_seconds", plan.report.ttft.quantile(0.99)},
                                 {"token_gap_p99_seconds", plan.report.gaps.quantile(0.99)},
                                 {"hit_rate", plan.report.hit_rate()},
                                 {"digest", fmt::format("{:016x}", plan.report.digest)}}},
      {"kv_store", json::object{{"ttl_seconds", plan.kv_ttl_seconds},
                                {"bytes", plan.base.demand.kv_stored_bytes},
                                {"read_bytes_per_second", plan.kv_read_bytes},
                                {"write_bytes_per_second", plan.kv_write_bytes}}},
      {"interconnect_bytes_per_second_of_8_gpus", json::object{{"prefill_in", link.prefill_in},
                                                               {"prefill_out", link.prefill_out},
                                                               {"decode_in", link.decode_in}}},
      {"sensitivities", std::move(cases)}};
  return json::serialize(object);
}

}  // namespace penstock::sim
