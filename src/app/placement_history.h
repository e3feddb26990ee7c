// PlacementHistory: why the last requests were placed where they were, for `penstock explain`.
//
// Invariants: at most `placements_max` are kept, the oldest goes first; one that is added takes the
// memory of the one that goes. Errors: none. Concurrency: any thread; one lock, held for a few
// copies. Source: design.md, law 5.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "service/gateway/explanation.h"

namespace penstock {

class PlacementHistory {
 public:
  explicit PlacementHistory(std::size_t placements_max) : kept_max_(placements_max) {}

  void add(gateway::PlacementExplanation explanation);
  // {"request", "placements": [...]}, in their order; nullopt when none is kept under this id.
  std::optional<std::string> find_json(std::string_view request_id) const;

 private:
  std::size_t kept_max_;
  mutable std::mutex mutex_;
  std::vector<gateway::PlacementExplanation> kept_;  // a ring once it is full
  std::size_t oldest_ = 0;
};

// What find_json() gave, for people. Nothing but the text itself when it is something else.
std::string explanation_text(std::string_view json);

}  // namespace penstock
