#include "service/gateway/engine_costs.h"

#include <algorithm>
#include <cmath>

namespace penstock::gateway {
namespace {

// Each answer counts for so much of the mean.
constexpr double kAnswerWeight = 1.0 / 32;
// Ranks of a worker share its frames, so a step counter is only as exact as one step.
constexpr std::uint64_t kSharedStepsMin = 8;

// About what the embedded engine needs on a laptop.
routing::CostSeeds usual_seeds() {
  routing::CostSeeds seeds;
  seeds.prefill = {0.5e-3, 50e-6, 1e-9};
  seeds.step = {1e-3, 100e-6, 20e-9};
  return seeds;
}

std::string_view name_of(std::string_view engine) {
  return engine.substr(0, engine.find(' '));
}

}  // namespace

routing::CostModels* EngineCosts::to_learn(std::string_view engine, std::string_view model) {
  const auto known = std::ranges::find_if(
      types_, [&](const Type& type) { return type.model == model && type.engine == engine; });
  if (known != types_.end()) return &known->costs;
  if (types_.size() == kTypesMax) return nullptr;
  const auto seeds = seeds_.find(name_of(engine));
  types_.push_back({std::string(engine), std::string(model),
                    routing::CostModels(seeds == seeds_.end() ? usual_seeds() : seeds->second)});
  return &types_.back().costs;
}

const routing::CostModels& EngineCosts::of(std::string_view engine, std::string_view model) {
  const routing::CostModels* const costs = to_learn(engine, model);
  return costs != nullptr ? *costs : types_.front().costs;
}

void EngineCosts::watch(std::span<const WorkerView> workers) {
  std::size_t ranks = 0;
  for (const WorkerView& worker : workers) {
    if (!worker.connected) continue;
    const std::uint64_t steps_min = worker.loads.size() > 1 ? kSharedStepsMin : 1;
    for (std::uint32_t rank = 0; rank < worker.loads.size(); ++rank) {
      ++ranks;
      const EngineLoad& load = worker.loads[rank];
      Seen& seen = seen_[{worker.description.id, rank}];
      const bool decoding =
          load.running > 0 && load.waiting == 0 && load.prompt_tokens_waiting == 0;
      const bool same = seen.epoch == worker.description.epoch && load.step >= seen.step;
      if (same && load.step < seen.step + steps_min && seen.decoding && decoding &&
          seen.running == load.running)
        continue;  // more steps say it better
      if (same && seen.decoding && decoding && seen.running == load.running &&
          load.model < worker.description.models.size()) {
        const auto steps = static_cast<std::int64_t>(load.step - seen.step);
        auto* const costs =
            to_learn(worker.description.engine, worker.description.models[load.model].name);
        if (costs != nullptr)
          costs->observe_step(load.running, load.kv_tokens_used,
                              (worker.heard_at - seen.at) / steps);
      }
      seen = {worker.description.epoch, load.step, worker.heard_at, load.running, decoding};
    }
  }
  if (seen_.size() <= ranks) return;
  // Somebody has gone: who is there comes back with the next look.
  std::erase_if(seen_, [&](const auto& entry) {
    return std::ranges::none_of(workers, [&](const WorkerView& worker) {
      return worker.connected && worker.description.id == entry.first.worker &&
             entry.first.rank < worker.loads.size();
    });
  });
}

void EngineCosts::prompt_computed(const WorkerView& worker, std::string_view model, Tokens fresh,
                                  Duration took) {
  auto* const costs = to_learn(worker.description.engine, model);
  if (costs == nullptr) return;
  costs->observe_prefill(fresh, Tokens(0), took);
  ++prefill_changes_;
}

void EngineCosts::answer_ended(std::uint64_t tokens) {
  answer_tokens_ += kAnswerWeight * (static_cast<double>(tokens) - answer_tokens_);
}

std::uint32_t EngineCosts::expected_answer(std::uint32_t tokens_max) const {
  const auto expected = static_cast<std::uint32_t>(std::lround(std::max(answer_tokens_, 1.0)));
  return tokens_max == 0 ? expected : std::min(tokens_max, expected);
}

}  // namespace penstock::gateway
