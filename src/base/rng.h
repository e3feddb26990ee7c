// Counter-based random numbers: the value is a pure function of (key, counter), with no state.
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). The
// sampler draws from (seed, choice, position, draw), so a stream that moves to another machine goes
// on with the very same numbers (law 3); simulators and tests use Rng, a counter over the same
// function.
//
// Invariants: equal inputs give equal outputs on every machine, forever (golden test).
// Concurrency: philox() is pure; an Rng object belongs to one thread.
#pragma once

#include <array>
#include <cstdint>

namespace penstock {

// One Philox4x32-10 block: 128 random bits for a 64-bit key and a 128-bit counter.
std::array<std::uint32_t, 4> philox(std::uint64_t key, std::array<std::uint32_t, 4> counter);

// Maps 53 random bits to [0, 1): never 1.
double uniform01(std::uint32_t high, std::uint32_t low);

// The sampler's draw: uniform in [0, 1) for this seed, choice, token position and draw number.
double sampling_uniform(std::uint64_t seed, std::uint32_t choice, std::uint32_t position,
                        std::uint32_t draw);

class Rng {
 public:
  explicit Rng(std::uint64_t seed) : seed_(seed) {}

  std::uint64_t next_u64();
  // Uniform in [0, bound); bound > 0. Bias is at most 2^-64 * bound.
  std::uint64_t below(std::uint64_t bound);
  double uniform();

 private:
  std::uint64_t seed_;
  std::uint64_t counter_ = 0;
};

}  // namespace penstock
