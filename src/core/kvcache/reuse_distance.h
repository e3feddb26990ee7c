// Hit rate against capacity, estimated live from a sample of the block references.
//
// A reference hits an LRU cache of n blocks when fewer than n other blocks were used since its
// last use. Exact distances need memory for every block; this keeps a spatial sample: all
// references to the blocks whose hash is below a threshold. Distances among the sample, divided
// by the sampling rate, estimate the true ones. When the sample is full the threshold falls to
// the largest hash kept, so memory is fixed; counts made at the higher rate are scaled down.
// (SHARDS of fixed size, Waldspurger et al., FAST 2015, with its correction for a sample whose
// share of the references is larger or smaller than its share of the blocks.)
//
// Invariants: at most `blocks_max` blocks are remembered. Equal references give equal estimates.
// With fewer blocks than that, distances are exact.
// Units and shapes: blocks; distances are counted in steps of a 16th of an octave. About 110
// bytes a remembered block.
// Concurrency: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <vector>

#include "domain/kv.h"

namespace penstock::kvcache {

class ReuseDistance {
 public:
  // Every `half_life` references all counts are halved, so that the estimate is of recent load.
  explicit ReuseDistance(std::size_t blocks_max = 8192, std::uint64_t half_life = 10'000'000);

  // A block was wanted, hit or miss. About 1 ns unless it is sampled, then about 0.3 us.
  void reference(const BlockKey& key);

  // Estimated share of the references that an LRU cache of this many blocks would serve, 0 to 1.
  // Below about 50 / rate() blocks it is noise: single hot blocks are in the sample or not.
  double hit_rate(std::uint64_t blocks) const;
  // The same of a cache without limit.
  double hit_rate_max() const;
  // Estimated number of distinct blocks.
  double distinct_blocks() const { return static_cast<double>(last_use_.size()) / rate(); }
  // Share of the blocks that are sampled.
  double rate() const;
  std::size_t sampled_blocks() const { return last_use_.size(); }

 private:
  static constexpr std::size_t kStepsPerOctave = 16;
  static constexpr std::size_t kSteps = 48 * kStepsPerOctave;

  static double step_of(double distance);
  void lower_threshold();
  void renumber();
  void mark(std::size_t slot, std::int32_t change);
  std::uint32_t marked_after(std::size_t slot) const;

  std::size_t blocks_max_;
  std::uint64_t half_life_;
  std::uint64_t threshold_;                                    // hashes up to it are sampled
  std::unordered_map<std::uint64_t, std::uint32_t> last_use_;  // sampled hash -> slot
  std::set<std::uint64_t> hashes_;                             // of last_use_, for the largest
  // Slots are uses in order; a Fenwick tree counts those that are some block's last one.
  std::vector<std::int32_t> tree_;
  std::uint32_t next_slot_ = 1;
  // Counts, in sampled references at the present rate.
  std::array<double, kSteps> reuses_{};
  double sampled_ = 0;
  double references_ = 0;  // all of them, unscaled
  std::uint64_t until_halved_;
};

}  // namespace penstock::kvcache
