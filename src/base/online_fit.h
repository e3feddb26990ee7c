// OnlineFit: y = sum of c_i * x_i with every c_i >= 0, learned from a stream of observations.
//
// Least squares of relative errors, so a 1 ms and a 1 s observation count alike. Each observation
// lets older ones that say something about the same direction count less ("directional
// forgetting"): a new regime is followed within about `memory` observations, and what nobody has
// observed for a while (long contexts at night) is kept instead of fading into noise. One that is
// far off is pulled in before it counts; the limit follows the usual error, so a stall is damped
// and a changed engine is not; while predictions are off by half and more, all that was learned is
// doubted. Non-negativity is exact: the best of all subsets of unknowns.
//
// The prediction error is measured on each observation before it is learned from.
//
// Invariants: coefficients are finite and never negative; equal streams give equal coefficients.
// Units and shapes: the caller's; up to four unknowns, unused features are 0.
// Errors: observations that are not positive and finite are ignored. Cost: about 1 us.
// Concurrency: one thread.
// Source: R. Kulhavy, "Restricted exponential forgetting in real-time identification", Automatica
// 1987; C. Lawson, R. Hanson, "Solving Least Squares Problems", ch. 23 (the subset conditions).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// How far predictions were off, recent observations first; logarithms, so 0.1 is about 10 %.
struct FitError {
  std::uint64_t observations = 0;
  double absolute = 0;  // mean of |log(observed / predicted)|
  double bias = 0;      // mean of log(observed / predicted): > 0 when predictions are too short

  bool operator==(const FitError&) const = default;
};

struct OnlineFitOptions {
  double memory = 100;     // observations of one direction that are remembered
  double seed_weight = 2;  // what a seed point counts for, in observations
};

class OnlineFit {
 public:
  static constexpr std::size_t kUnknownsMax = 4;
  using Features = std::array<double, kUnknownsMax>;

  // `unknowns` in [1, kUnknownsMax].
  explicit OnlineFit(std::size_t unknowns, const OnlineFitOptions& options = {});

  // Starts from these coefficients, believed at the given points.
  void seed(const Features& coefficients, std::span<const Features> points);
  void observe(const Features& x, double y);

  double predict(const Features& x) const;
  const Features& coefficients() const { return fit_; }
  const FitError& error() const { return error_; }

 private:
  void forget(const Features& x);
  void add(const Features& x, double y, double weight);
  void solve();

  std::size_t unknowns_;
  OnlineFitOptions options_;
  Features fit_{};
  FitError error_;
  // Weighted sums of x*x^T / y^2 and x / y over all observations.
  std::array<Features, kUnknownsMax> squares_{};
  Features products_{};
};

}  // namespace penstock
