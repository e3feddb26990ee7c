#include "sim/efficiency.h"

#include <algorithm>
#include <cmath>

namespace penstock::sim {
namespace {

constexpr double kLeastCopies = 1e-3;
constexpr double kMostCopies = 1e5;

}  // namespace

std::vector<evaluate::Arrival> arrivals_of(const evaluate::Trace& trace, const LoadPlan& plan,
                                           double copies) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(plan.duration).count();
  return evaluate::scale(
      trace, {.copies = copies, .duration_us = us, .tick_us = trace.tick_us, .seed = plan.seed});
}

// Whether a load is met is a matter of chance near the edge, so the search comes from above and
// takes the first that is: the highest load, not just some edge, and for every policy the same.
Result<double> highest_load(const std::function<Result<bool>(double)>& meets, double from,
                            double tolerance, double hint) {
  constexpr double kDown = 1.04;
  constexpr std::size_t kFineSteps = 12;  // then larger ones: it is far off
  std::vector<double> steps{std::clamp(from, kLeastCopies, kMostCopies)};
  const auto next = [&] {
    return steps.back() / (steps.size() <= kFineSteps ? kDown : kDown * kDown * kDown);
  };
  while (hint > 0 && next() > std::max(hint, kLeastCopies))
    steps.push_back(next());
  double low = 0;
  double high = 0;
  for (bool up = steps.size() > 1; low == 0 || (high == 0 && !steps.empty());) {
    const double at = steps.back();
    TRY(const bool met, meets(at));
    (met ? low : high) = at;
    if (met) {
      if (!up) break;
      steps.pop_back();
    } else {
      if (low > 0) break;
      up = false;
      steps.push_back(next());
      if (steps.back() < kLeastCopies) return 0.0;
    }
  }
  for (double up = kDown; high == 0; up = std::min(up * up, 4.0)) {  // even the first was met
    const double at = std::min(low * up, kMostCopies);
    TRY(const bool met, meets(at));
    (met ? low : high) = at;
    if (low >= kMostCopies) return low;
  }
  while (high / low > 1 + tolerance) {
    const double middle = std::sqrt(low * high);
    TRY(const bool met, meets(middle));
    (met ? low : high) = middle;
  }
  return low;
}

Result<double> bound_of(const routing::Profile& profile, const evaluate::Trace& trace,
                        const LoadPlan& plan, const BoundOptions& options) {
  const auto meets = [&](double copies) -> Result<bool> {
    if (plan.progress) plan.progress("bound", copies);
    const auto arrivals = arrivals_of(trace, plan, copies);
    if (arrivals.empty()) return true;
    const BoundLoad load = bound_load(profile, trace, arrivals, plan.warmup, options.slo);
    return check_bound(profile, load, options).feasible;
  };
  const OfflineBenchmark benchmark =
      offline_benchmark(profile, trace, plan, options.slo, 1, options.prefill_on_decode_ranks);
  // The upper end of the bisection, so that it stays a bound.
  TRY(const double load,
      highest_load(meets, std::max(benchmark.copies, kLeastCopies), plan.tolerance / 4));
  return load * (1 + plan.tolerance / 4);
}

OfflineBenchmark offline_benchmark(const routing::Profile& profile, const evaluate::Trace& trace,
                                   const LoadPlan& plan, const Slo& slo, double at_copies,
                                   bool on_decode_ranks) {
  OfflineBenchmark result;
  LoadPlan whole = plan;
  const auto arrivals = arrivals_of(trace, whole, at_copies);
  if (arrivals.empty()) return result;
  const BoundLoad load = bound_load(profile, trace, arrivals, plan.warmup, slo);
  double prefill = 0;
  double decode = 0;
  for (const BoundRequest& r : load.requests) {
    prefill += r.prefill_work;
    decode += r.decode_work;
  }
  const double seconds = routing::to_seconds(plan.duration - plan.warmup);
  const routing::CostSeeds& costs = profile.costs;
  const double useful = profile.chunk_budget_seconds - costs.prefill.base;
  const double base_factor = useful > 0 ? profile.chunk_budget_seconds / useful : 1;
  const double decode_share = 1 / std::max(1.0, costs.decode_moe.mean) - costs.step.base / slo.tau;
  const double prefill_ranks = prefill * base_factor * std::max(1.0, costs.prefill_moe.mean) /
                               seconds / static_cast<double>(profile.prefill_pool.ranks);
  const double decode_ranks = decode_share > 0 ? decode / decode_share / seconds /
                                                     static_cast<double>(profile.decode_pool.ranks)
                                               : 1e9;
  result.prefill_copies = prefill_ranks > 0 ? at_copies / prefill_ranks : kMostCopies;
  result.decode_copies = decode_ranks > 0 ? at_copies / decode_ranks : kMostCopies;
  result.copies = std::min(result.prefill_copies, result.decode_copies);
  // Whoever has time to spare computes prompts too: the time of all ranks is used up.
  if (on_decode_ranks) {
    const auto p = static_cast<double>(profile.prefill_pool.ranks);
    const auto d = static_cast<double>(profile.decode_pool.ranks);
    result.copies = std::min(result.decode_copies,
                             (p + d) / (p / result.prefill_copies + d / result.decode_copies));
  }
  return result;
}

Result<RunFigures> run_at(const routing::Profile& profile, const evaluate::Trace& trace,
                          const LoadPlan& plan, ClusterOptions options, double copies) {
  options.warmup = plan.warmup;
  options.seed = plan.seed;
  if (plan.progress)
    plan.progress(options.clairvoyant
                      ? "clairvoyant"
                      : options.prefill_policy + (options.front.on ? " + queue" : ""),
                  copies);
  const std::string key = plan.memory ? run_key(profile, options, plan.duration, copies) : "";
  if (plan.memory)
    if (auto known = plan.memory.recall(key))
      if (auto figures = parse_run_figures(*known)) return *figures;
  const auto arrivals = arrivals_of(trace, plan, copies);
  RunFigures figures{.met = true};  // nobody who counts
  if (!arrivals.empty() &&
      Duration(std::chrono::microseconds(arrivals.back().at_us)) > options.warmup) {
    TRY(const Report report, simulate(profile, trace, arrivals, options));
    figures = figures_of(report);
  }
  if (plan.memory) plan.memory.keep(key, print_run_figures(figures));
  return figures;
}

Result<FoundLoad> find_load(const routing::Profile& profile, const evaluate::Trace& trace,
                            const LoadPlan& plan, const ClusterOptions& options, double from,
                            double hint) {
  ClusterOptions stopping = options;
  stopping.stop_early = true;
  FoundLoad found;
  TRY(found.copies, highest_load(
                        [&](double copies) -> Result<bool> {
                          TRY(RunFigures figures, run_at(profile, trace, plan, stopping, copies));
                          // Searches only ever go up from a load that was met.
                          if (figures.met) found.figures = std::move(figures);
                          return figures.met;
                        },
                        from, plan.tolerance, hint));
  return found;
}

Result<double> policy_load(const routing::Profile& profile, const evaluate::Trace& trace,
                           const LoadPlan& plan, const ClusterOptions& options, double from) {
  TRY(const FoundLoad found, find_load(profile, trace, plan, options, from));
  return found.copies;
}

Result<double> clairvoyant_load(const routing::Profile& profile, const evaluate::Trace& trace,
                                const LoadPlan& plan, const Slo& slo, double guess) {
  // What the costliest share of a typical load costs.
  const auto arrivals = arrivals_of(trace, plan, std::min(guess, 8.0));
  std::vector<double> work;
  for (const BoundRequest& r : bound_load(profile, trace, arrivals, plan.warmup, slo).requests)
    work.push_back(r.prefill_work + profile.costs.prefill.base);
  std::ranges::sort(work, std::greater<>{});
  double best = 0;
  for (const double share : {0.0, 0.4, 0.7}) {
    ClusterOptions options;
    options.clairvoyant = true;
    options.slo = slo;
    const auto at =
        static_cast<std::size_t>(share * slo.missed_share * static_cast<double>(work.size()));
    options.refuse_work = at > 0 && at < work.size() ? work[at] : 0;
    TRY(const double load, policy_load(profile, trace, plan, options, guess));
    best = std::max(best, load);
  }
  return best;
}

}  // namespace penstock::sim
