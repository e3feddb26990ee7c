#include "service/gateway/engine_costs.h"

#include <algorithm>
#include <cmath>

namespace penstock::gateway {
namespace {

// Each answer counts for so much of the mean.
constexpr double kAnswerWeight = 1.0 / 32;
// Of a load that is hidden behind the computation.
constexpr Duration kLoadMin = std::chrono::microseconds(10);
// Ranks of a worker share its frames, so a step counter is only as exact as one step.
constexpr std::uint64_t kSharedStepsMin = 8;

// About what the embedded engine needs on a laptop.
routing::CostSeeds usual_seeds() {
  routing::CostSeeds seeds;
  seeds.prefill = {0.5e-3, 50e-6, 1e-9};
  seeds.step = {1e-3, 100e-6, 20e-9};
  const auto load = [&](KvTier tier) -> routing::FlowCoefficients& {
    return seeds.load[static_cast<std::size_t>(tier)];
  };
  load(KvTier::kHost) = {50e-6, 5e9};
  load(KvTier::kDisk) = {0.5e-3, 0.5e9};
  load(KvTier::kPeer) = {0.5e-3, 1e9};
  load(KvTier::kCluster) = {5e-3, 0.4e9};
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

double EngineCosts::decode_moe(const WorkerDescription& worker,
                               const routing::CostModels& costs) const {
  const auto measured =
      worker.step_group.empty() ? std::nullopt : experts_.of_group(worker.step_group);
  return std::max(1.0, measured.value_or(costs.seeds().decode_moe.mean));
}

void EngineCosts::watch(std::span<const WorkerView> workers) {
  experts_.watch(workers);
  std::size_t ranks = 0;
  for (const WorkerView& worker : workers) {
    if (!worker.connected) continue;
    if (!worker.description.step_group.empty()) {
      watch_group(workers, worker);
      continue;
    }
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
  std::erase_if(groups_, [&](const auto& entry) {
    return std::ranges::none_of(workers, [&](const WorkerView& worker) {
      return worker.connected && worker.description.step_group == entry.first;
    });
  });
  if (seen_.size() <= ranks) return;
  // Somebody has gone: who is there comes back with the next look.
  std::erase_if(seen_, [&](const auto& entry) {
    return std::ranges::none_of(workers, [&](const WorkerView& worker) {
      return worker.connected && worker.description.id == entry.first.worker &&
             entry.first.rank < worker.loads.size();
    });
  });
}

// The ranks of a group do the same steps, so one of them counts for all. Called with each of the
// group's workers; the first connected one does the work.
void EngineCosts::watch_group(std::span<const WorkerView> workers, const WorkerView& first) {
  const std::string& name = first.description.step_group;
  SeenGroup now;
  bool decoding = false;
  bool prompts = false;
  for (const WorkerView& worker : workers) {
    if (!worker.connected || worker.description.step_group != name) continue;
    if (now.epochs.empty() && &worker != &first) return;
    now.epochs.push_back(worker.description.epoch);
    for (const EngineLoad& load : worker.loads) {
      now.ranks.push_back({load.running, load.kv_tokens_used.value});
      decoding = decoding || load.running > 0;
      prompts = prompts || load.waiting > 0 || load.prompt_tokens_waiting > 0;
    }
  }
  if (first.loads.empty()) return;
  if (!decoding || prompts) now.ranks.clear();
  now.step = first.loads[0].step;
  now.at = first.heard_at;
  SeenGroup& before = groups_[name];
  const bool same_batch = !now.ranks.empty() &&
                          std::ranges::equal(before.ranks, now.ranks, {}, &routing::StepLoad::batch,
                                             &routing::StepLoad::batch);
  if (same_batch && before.epochs == now.epochs && now.step >= before.step) {
    // Its workers' frames come one after another: some more steps say it better.
    if (now.step < before.step + kSharedStepsMin) return;
    const std::uint32_t model = first.loads[0].model;
    auto* const costs =
        model < first.description.models.size()
            ? to_learn(first.description.engine, first.description.models[model].name)
            : nullptr;
    if (costs != nullptr) {
      // The model takes the profile's moe_lb out of what it is told; that which was measured
      // counts.
      const double usual = std::max(1.0, costs->seeds().decode_moe.mean);
      const double took =
          routing::to_seconds(now.at - before.at) / static_cast<double>(now.step - before.step);
      costs->observe_group_step(
          now.ranks, routing::to_duration(took * usual / decode_moe(first.description, *costs)));
    }
  }
  before = std::move(now);
}

void EngineCosts::prefix_loaded(const WorkerView& worker, std::string_view model, Tokens cached,
                                KvTier tier, Tokens fresh, Duration took) {
  const auto& models = worker.description.models;
  const auto served = std::ranges::find(models, model, &ModelDescription::name);
  auto* const costs = to_learn(worker.description.engine, model);
  if (costs == nullptr || served == models.end()) return;
  const Duration rest = took - costs->prefill(fresh, cached);
  costs->observe_load(Bytes(cached.value * served->kv_token_bytes), tier, std::max(rest, kLoadMin));
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
