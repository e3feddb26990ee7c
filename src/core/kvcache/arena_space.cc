#include "core/kvcache/arena_space.h"

#include <iterator>

#include "base/check.h"

namespace penstock::kvcache {

ArenaSpace::ArenaSpace(std::uint64_t units) : units_(units) {
  if (units > 0) insert(0, units);
}

std::optional<std::uint64_t> ArenaSpace::take(std::uint64_t units) {
  ENSURE(units > 0);
  const auto best = by_length_.lower_bound({units, 0});
  if (best == by_length_.end()) return std::nullopt;
  const auto [length, first] = *best;
  erase(by_first_.find(first));
  if (length > units) insert(first + units, length - units);
  return first;
}

void ArenaSpace::give(std::uint64_t first, std::uint64_t units) {
  ENSURE(units > 0 && units <= units_ && first <= units_ - units);
  const auto next = by_first_.lower_bound(first);
  ENSURE(next == by_first_.end() || next->first >= first + units);
  const bool joins_next = next != by_first_.end() && next->first == first + units;
  std::uint64_t end = first + units;
  if (next != by_first_.begin()) {
    const auto previous = std::prev(next);
    ENSURE(previous->first + previous->second <= first);
    if (previous->first + previous->second == first) {
      first = previous->first;
      erase(previous);
    }
  }
  if (joins_next) {
    end += next->second;
    erase(next);
  }
  insert(first, end - first);
}

void ArenaSpace::insert(std::uint64_t first, std::uint64_t units) {
  by_first_.emplace(first, units);
  by_length_.emplace(units, first);
  free_units_ += units;
}

void ArenaSpace::erase(std::map<std::uint64_t, std::uint64_t>::iterator extent) {
  free_units_ -= extent->second;
  by_length_.erase({extent->second, extent->first});
  by_first_.erase(extent);
}

}  // namespace penstock::kvcache
