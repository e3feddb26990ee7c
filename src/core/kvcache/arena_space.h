// ArenaSpace: which parts of the arena are free, in extents of 4 KiB units.
//
// Best fit: the smallest free extent that is large enough, the lowest of equals; what is left of it
// stays free. A freed extent is joined with its free neighbours. Blocks of one layout have one
// size, so holes are refilled exactly; different sizes share the arena without slabs of their own.
//
// Invariants: taken and free extents partition [0, units); no two free extents touch.
// Units and shapes: 64-bit offsets and lengths in units of kArenaUnit bytes.
// Errors: take() gives nullopt when no free extent is long enough; giving back what is not taken is
// a bug. Cost: O(log free extents). Concurrency: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace penstock::kvcache {

inline constexpr std::uint64_t kArenaUnit = 4096;

class ArenaSpace {
 public:
  explicit ArenaSpace(std::uint64_t units);

  // Takes `units` (> 0) and returns the first one's number.
  std::optional<std::uint64_t> take(std::uint64_t units);
  // Gives back exactly what one take() returned.
  void give(std::uint64_t first, std::uint64_t units);

  bool fits(std::uint64_t units) const { return longest_free() >= units; }
  std::uint64_t longest_free() const { return by_length_.empty() ? 0 : by_length_.rbegin()->first; }
  std::uint64_t units() const { return units_; }
  std::uint64_t free_units() const { return free_units_; }
  std::size_t free_extents() const { return by_first_.size(); }

 private:
  void insert(std::uint64_t first, std::uint64_t units);
  void erase(std::map<std::uint64_t, std::uint64_t>::iterator extent);

  std::uint64_t units_;
  std::uint64_t free_units_ = 0;
  std::map<std::uint64_t, std::uint64_t> by_first_;              // first unit -> length
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_length_;  // (length, first unit)
};

}  // namespace penstock::kvcache
