// pick_worker(): which worker runs a request, and why.
//
// Today one rule: among the connected workers that serve the model and are not draining, the one
// with the fewest requests in flight, then the lowest id. The balancers replace it behind this
// function.
//
// Errors: kUnavailable when no worker can take the request, with the reason.
// Concurrency: pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "port/engine_client.h"

namespace penstock::gateway {

struct Placement {
  WorkerId worker;
  ModelDescription model;
  std::string reason;  // "worker-0: 3 in flight, fewest of 2"
};

// The context length of the model on the first worker known to serve it; nullopt for none.
std::optional<std::uint32_t> context_length(std::span<const WorkerView> workers,
                                            std::string_view model);

Result<Placement> pick_worker(std::span<const WorkerView> workers, std::string_view model);

}  // namespace penstock::gateway
