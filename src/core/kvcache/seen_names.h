// SeenNames: remembers about the last n block names, in 4 bytes each, for admission on second use.
//
// Four-way buckets of 32-bit fingerprints; a new one pushes its bucket's oldest out. A name that
// was pushed out counts as new; a stranger counts as seen once in a billion.
// Concurrency: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "domain/kv.h"

namespace penstock::kvcache {

class SeenNames {
 public:
  // Rounded down to a power of two, at least one bucket.
  explicit SeenNames(std::size_t names);

  // Whether the name was seen before; from now on it was.
  bool see(const BlockName& name);
  std::size_t memory_bytes() const { return prints_.size() * sizeof(std::uint32_t); }

 private:
  static constexpr std::size_t kWays = 4;
  std::vector<std::uint32_t> prints_;  // buckets of kWays, newest first; 0 is nothing
  std::size_t mask_ = 0;               // buckets - 1
};

}  // namespace penstock::kvcache
