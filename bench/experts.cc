// penstock bench experts: expert placement against the public EPLB, and how long it takes to plan.
//
// Static loads: max/mean load of the worst GPU; the next window: planned on the past, judged on
// window t + 1 of the generator (core/experts/load_generator.h). Times are CPU time of this thread,
// because the machine is shared. Parity reads the recorded outputs of the public algorithm from
// $PENSTOCK_SHARED or ../shared, and is skipped without them.
// Concurrency: see bench.h. Source: docs/experts.md.
#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include "bench.h"
#include "core/experts/baseline.h"
#include "core/experts/load_generator.h"
#include "core/experts/load_window.h"
#include "core/experts/planner.h"
#include "core/experts/weighted_split.h"

namespace penstock::bench {
namespace {

namespace json = boost::json;
using namespace experts;

constexpr double kStepPicks = 8192 * 8;

double thread_milliseconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

std::vector<double> zipf(std::size_t n, double exponent) {
  std::vector<double> loads(n);
  for (std::size_t i = 0; i < n; ++i)
    loads[i] = std::pow(static_cast<double>(i + 1), -exponent);
  return loads;
}

LayerLoads of(std::vector<double> mean) {
  return {.mean = std::move(mean), .deviations = {}, .windows = 0};
}

// Less is better, against what stands beside it.
Figure less(std::string name, double value, std::string beside, double other, double aim) {
  return {std::move(name),
          value,
          "max/mean",
          std::move(beside),
          other,
          value > 0 ? other / value : 0,
          aim,
          {}};
}

Figure parity() {
  const char* shared = std::getenv("PENSTOCK_SHARED");
  std::ifstream file(std::string(shared != nullptr ? shared : "../shared") +
                     "/vectors/expert_placement_baseline.json");
  if (!file.good())
    return skipped("parity_with_public_algorithm", "share of layers", "limit", 1,
                   "shared/vectors is not there (set PENSTOCK_SHARED)");
  const json::value all = json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  double layers = 0;
  double equal = 0;
  for (const json::value& item : all.as_array()) {
    const json::object& c = item.as_object();
    const auto number = [&](const char* key) { return c.at(key).to_number<std::size_t>(); };
    const json::array& weights = c.at("weight").as_array();
    for (std::size_t layer = 0; layer < weights.size(); ++layer) {
      const auto loads = json::value_to<std::vector<double>>(weights[layer]);
      const Shape shape{.experts = loads.size(),
                        .gpus = number("num_gpus"),
                        .slots_per_gpu = number("num_replicas") / number("num_gpus"),
                        .groups = number("num_groups"),
                        .nodes = number("num_nodes")};
      const auto placement = plan_baseline(shape, loads);
      layers += 1;
      if (placement && placement->slots == json::value_to<std::vector<ExpertIndex>>(
                                               c.at("physical_to_logical").as_array()[layer]))
        equal += 1;
    }
  }
  return at_least("parity_with_public_algorithm", layers > 0 ? equal / layers : 0,
                  "share of layers", 1);
}

Status static_figures(std::vector<Figure>& figures) {
  const Shape eight{.experts = 8, .gpus = 8, .slots_per_gpu = 2};
  const std::vector<double> example{600, 560, 120, 120, 20, 10, 10, 10};
  TRY(const Placement best, plan_layer(eight, of(example), {}));
  figures.push_back(at_most("eight_experts_peak", std::ranges::max(gpu_loads(eight, best, example)),
                            "load", 196.7));
  const Shape wide{.experts = 256, .gpus = 144, .slots_per_gpu = 2};
  for (const double exponent : {0.4, 0.6, 0.8}) {
    const auto loads = zipf(256, exponent);
    TRY(const Placement ours, plan_layer(wide, of(loads), {}));
    TRY(const Placement theirs, plan_baseline(wide, loads));
    double mean = 0;
    for (const double load : loads)
      mean += load / 144;
    const double lb = max_over_mean(wide, ours, loads);
    const std::string name = fmt::format("256_on_144x2_zipf_{}", exponent);
    if (exponent == 0.4) figures.push_back(at_most(name, lb, "max/mean", 1.15));
    figures.push_back(
        less(name + "_baseline", lb, "public EPLB", max_over_mean(wide, theirs, loads), 1));
    figures.push_back(
        less(name + "_floor", lb, "floor of equal shares", equal_floor(wide, loads) / mean, 0.95));
    TRY(const WeightedPlan weighted, plan_weighted(wide, loads));
    figures.push_back(less(name + "_weighted", std::ranges::max(weighted.split.gpus) / mean,
                           "floor of weighted shares", weighted_floor(wide, loads) / mean, 0.95));
  }
  return {};
}

// Planned on windows up to t, judged on t + 1 and on single steps of it.
Status next_window(bool quick, std::vector<Figure>& figures) {
  const Shape shape{.experts = 384, .gpus = 64, .slots_per_gpu = 7};
  struct Sums {
    double ours = 0;
    double theirs = 0;
    double oracle = 0;
    double step_ours = 0;
    double step_theirs = 0;
    int windows = 0;
  } sums;
  for (std::uint64_t seed = 1; seed <= (quick ? 2U : 6U); ++seed) {
    LoadGenerator generator({.seed = seed});
    LoadWindow window(shape.experts);
    Placement mine;
    Placement base;
    for (int t = 0; t < 40; ++t) {
      const auto loads = generator.next();
      if (t >= 10) {
        TRY(const Placement oracle, plan_layer(shape, of(loads), {.steps_max = 0}));
        const auto step = generator.step(kStepPicks);
        sums.ours += max_over_mean(shape, mine, loads);
        sums.theirs += max_over_mean(shape, base, loads);
        sums.oracle += max_over_mean(shape, oracle, loads);
        sums.step_ours += max_over_mean(shape, mine, step);
        sums.step_theirs += max_over_mean(shape, base, step);
        ++sums.windows;
      }
      TRY_STATUS(window.push(loads));
      TRY(mine, plan_layer(shape, window.forecast(), {.steps_max = 0}));
      TRY(base, plan_baseline(shape, loads));
    }
  }
  const double n = sums.windows;
  figures.push_back(at_most("next_window_moe_lb", sums.ours / n, "max/mean", 1.05));
  figures.push_back(
      less("next_window_over_baseline", sums.ours / n, "public EPLB", sums.theirs / n, 1));
  figures.push_back(
      less("next_window_excess", sums.ours / n - 1, "public EPLB", sums.theirs / n - 1, 1.1));
  figures.push_back(
      less("next_window_over_oracle", sums.ours / n, "planned on t + 1", sums.oracle / n, 0.95));
  figures.push_back(
      less("next_step_moe_lb", sums.step_ours / n, "public EPLB", sums.step_theirs / n, 1));
  return {};
}

// Forty layers of 384 experts, a whole round: present placements, eight changes remembered.
Status plan_time(bool quick, std::vector<Figure>& figures) {
  const Shape shape{.experts = 384, .gpus = 64, .slots_per_gpu = 7};
  std::vector<Placement> current;
  std::vector<LayerLoads> forecasts;
  for (std::uint64_t layer = 0; layer < 40; ++layer) {
    LoadGenerator generator({.seed = 100 + layer});
    LoadWindow window(shape.experts);
    TRY(Placement first, plan_baseline(shape, generator.next()));
    for (int t = 0; t < 10; ++t)
      TRY_STATUS(window.push(generator.next()));
    forecasts.push_back(window.forecast());
    current.push_back(std::move(first));
  }
  Placement planned;
  std::vector<double> first_ms;
  std::vector<double> round_ms;
  for (int i = 0; i < (quick ? 3 : 9); ++i) {
    double start = thread_milliseconds();
    for (const LayerLoads& loads : forecasts) {
      TRY(planned, plan_layer(shape, loads, {.steps_max = 0}));
    }
    first_ms.push_back(thread_milliseconds() - start);
    start = thread_milliseconds();
    TRY(RoundPlanner planner, RoundPlanner::start(shape, current, forecasts, {}));
    while (planner.step()) {
    }
    (void)std::move(planner).finish();
    round_ms.push_back(thread_milliseconds() - start);
  }
  std::ranges::sort(first_ms);
  std::ranges::sort(round_ms);
  figures.push_back(at_most("plan_40_layers_384_experts", first_ms[first_ms.size() / 2], "ms", 20));
  figures.push_back(
      at_most("round_40_layers_bounded_moves", round_ms[round_ms.size() / 2], "ms", 200));
  return {};
}

}  // namespace

Result<std::vector<Figure>> run_experts(const Options& options) {
  std::vector<Figure> figures;
  figures.push_back(parity());
  TRY_STATUS(static_figures(figures));
  TRY_STATUS(next_window(options.quick, figures));
  TRY_STATUS(plan_time(options.quick, figures));
  return figures;
}

}  // namespace penstock::bench
