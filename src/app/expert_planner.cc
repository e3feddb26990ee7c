#include "app/expert_planner.h"

#include <fmt/format.h>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "app/entropy.h"
#include "app/expert_link.h"
#include "app/expert_options.h"
#include "app/pools.h"
#include "io/telemetry/log.h"

namespace penstock {
namespace {

constexpr Duration kAnswerMax = std::chrono::seconds(10);
// Of one model on one worker. Forty layers of 384 experts take about 12 ms.
constexpr auto kPlanningMax = std::chrono::milliseconds(200);

// One model on one worker.
struct Planned {
  experts::LivePlanner planner;
  std::string last_error;  // said once
};

class Rounds {
 public:
  Rounds(const Options& options, Metrics& metrics, ExpertLink& link)
      : options_(live_planner_options(options)), metrics_(metrics), link_(link) {
    options_.planner = Epoch(draw_u64());
  }

  void run() {
    std::map<std::pair<WorkerId, std::string>, std::vector<RankExperts>> models;
    for (RankExperts& rank : link_.ask(kAnswerMax))
      models[{rank.worker, rank.model}].push_back(std::move(rank));
    for (const auto& [key, ranks] : models) {
      Planned& planned =
          planned_.try_emplace(key, experts::LivePlanner(options_), "").first->second;
      const auto outcome = plan(planned, ranks);
      metrics_.counter(Metric::kExpertPlans, {outcome ? *outcome : "failed"}).add();
      if (!outcome &&
          std::exchange(planned.last_error, outcome.error().message) != outcome.error().message)
        log_warning("experts of {} on {} are not planned: {}", ranks[0].model, ranks[0].worker_name,
                    outcome.error().message);
      if (outcome) push(planned.planner, ranks);
    }
  }

 private:
  // What came of it, for the metric.
  Result<std::string_view> plan(Planned& planned, const std::vector<RankExperts>& ranks) {
    std::vector<ExpertReport> reports;
    for (const RankExperts& rank : ranks)
      reports.push_back(rank.report);
    TRY_STATUS(planned.planner.observe(ranks[0].epoch, reports));
    if (planned.planner.stands_back()) return "stands_back";
    TRY(auto round, planned.planner.begin());
    if (!round) return "idle";
    const auto end = std::chrono::steady_clock::now() + kPlanningMax;
    while (std::chrono::steady_clock::now() < end && round->step()) {
    }
    experts::RoundPlan plan = std::move(*round).finish();
    const bool complete = plan.complete;
    const std::string told = describe(plan);
    planned.last_error.clear();
    if (!planned.planner.take(std::move(plan))) return complete ? "kept" : "incomplete";
    log_info("experts of {} on {}: map {}, {}", ranks[0].model, ranks[0].worker_name,
             planned.planner.version(), told);
    return complete ? "changed" : "incomplete";
  }

  static std::string describe(const experts::RoundPlan& plan) {
    double before = 0;
    double after = 0;
    std::size_t layers = 0;
    for (const experts::LayerPlan& layer : plan.layers) {
      before += layer.before;
      after += layer.after;
      if (layer.verdict == experts::LayerVerdict::kPlanned) ++layers;
    }
    const double n = static_cast<double>(std::max<std::size_t>(plan.layers.size(), 1));
    return fmt::format(
        "{} of {} layers planned{}, {} copies move, max/mean expected {:.3f} -> {:.3f}", layers,
        plan.layers.size(), plan.complete ? "" : " (time was over)", plan.moves, before / n,
        after / n);
  }

  void push(const experts::LivePlanner& planner, const std::vector<RankExperts>& ranks) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto map = planner.map_for(i);
      if (!map) continue;
      const auto taken = link_.push(ranks[i].worker, ranks[i].rank, *map, kAnswerMax);
      metrics_.counter(Metric::kExpertMapsPushed, {taken ? "taken" : "refused"}).add();
      if (!taken)
        log_warning("rank {} of {} did not take expert map {}: {}", ranks[i].rank,
                    ranks[i].worker_name, map->version, taken.error().message);
    }
  }

  experts::LivePlannerOptions options_;
  Metrics& metrics_;
  ExpertLink& link_;
  std::map<std::pair<WorkerId, std::string>, Planned> planned_;
};

}  // namespace

ExpertPlanner::ExpertPlanner(const Options& options, Metrics& metrics)
    : options_(options), metrics_(metrics), thread_([this] { run(); }) {}

ExpertPlanner::~ExpertPlanner() {
  stopping_ = true;
  thread_.join();
}

void ExpertPlanner::run() {
  ExpertLink link(gateway_workers(options_), &stopping_);
  Rounds rounds(options_, metrics_, link);
  while (!stopping_) {
    link.wait(options_.expert_plan_interval);
    if (!stopping_) rounds.run();
  }
}

}  // namespace penstock
