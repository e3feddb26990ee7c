#include "service/gateway/placement.h"

#include <fmt/format.h>
#include <algorithm>

namespace penstock::gateway {

Result<Placement> pick_worker(std::span<const WorkerView> workers, std::string_view model) {
  const WorkerView* best = nullptr;
  const ModelDescription* best_model = nullptr;
  std::uint32_t candidates = 0;
  std::uint32_t draining = 0;
  for (const WorkerView& worker : workers) {
    if (!worker.connected) continue;
    const auto& models = worker.description.models;
    const auto served = std::ranges::find(models, model, &ModelDescription::name);
    if (served == models.end()) continue;
    if (worker.draining) {
      ++draining;
      continue;
    }
    ++candidates;
    const bool better =
        best == nullptr || worker.in_flight < best->in_flight ||
        (worker.in_flight == best->in_flight && worker.description.id < best->description.id);
    if (better) {
      best = &worker;
      best_model = &*served;
    }
  }
  if (best == nullptr) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("no worker can take a request for the model '{}' right now (known: {}, "
                            "draining: {}); try again shortly",
                            model, workers.size(), draining));
  }
  return Placement{best->description.id, *best_model,
                   fmt::format("{}: {} in flight, fewest of {}", best->description.name,
                               best->in_flight, candidates)};
}

std::optional<std::uint32_t> context_length(std::span<const WorkerView> workers,
                                            std::string_view model) {
  for (const WorkerView& worker : workers) {
    for (const ModelDescription& description : worker.description.models) {
      if (description.name == model) return description.context_length;
    }
  }
  return std::nullopt;
}

}  // namespace penstock::gateway
