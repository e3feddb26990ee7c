#include "base/online_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/check.h"

namespace penstock {
namespace {

// An observation further from the prediction than a factor of four, or three times the usual
// error, is pulled in to it.
constexpr double kOutlierLog = 1.4;
constexpr double kErrorsMax = 3;
constexpr double kErrorMemory = 20;  // observations
// With a usual error above this (a factor of 1.6) everything learned so far is doubted, and loses
// a tenth of its weight with each observation until predictions are right again.
constexpr double kDoubtLog = 0.5;
constexpr double kDoubtKeep = 0.9;
constexpr std::uint64_t kDoubtAfter = 10;  // observations, before an error is usual
// Predictions below this are none.
constexpr double kPredictionMin = 1e-12;
// A pivot below this part of its diagonal means that the unknowns can't be told apart.
constexpr double kPivotMin = 1e-10;

using Features = OnlineFit::Features;
constexpr std::size_t kMax = OnlineFit::kUnknownsMax;

bool positive(double value) {
  return value > 0 && std::isfinite(value);
}

// Solves the normal equations of the unknowns in `chosen` (bits), the others 0; nullopt when they
// are singular. Scaled to a unit diagonal first: features differ by nine orders of magnitude.
std::optional<Features> solve_subset(const std::array<Features, kMax>& squares,
                                     const Features& products, unsigned chosen) {
  std::array<std::size_t, kMax> index{};
  std::size_t n = 0;
  for (std::size_t i = 0; i < kMax; ++i)
    if ((chosen >> i & 1U) != 0) index[n++] = i;
  std::array<std::array<double, kMax + 1>, kMax> rows{};
  Features scale{};
  for (std::size_t i = 0; i < n; ++i) {
    const double diagonal = squares[index[i]][index[i]];
    if (!positive(diagonal)) return std::nullopt;
    scale[i] = 1 / std::sqrt(diagonal);
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j)
      rows[i][j] = squares[index[i]][index[j]] * scale[i] * scale[j];
    rows[i][n] = products[index[i]] * scale[i];
  }
  for (std::size_t i = 0; i < n; ++i) {  // positive definite: no pivoting needed
    if (!(rows[i][i] > kPivotMin)) return std::nullopt;
    for (std::size_t k = i + 1; k < n; ++k) {
      const double factor = rows[k][i] / rows[i][i];
      for (std::size_t j = i; j <= n; ++j)
        rows[k][j] -= factor * rows[i][j];
    }
  }
  Features x{};
  for (std::size_t i = n; i-- > 0;) {
    double sum = rows[i][n];
    for (std::size_t j = i + 1; j < n; ++j)
      sum -= rows[i][j] * x[index[j]] / scale[j];
    x[index[i]] = sum / rows[i][i] * scale[i];
  }
  return x;
}

}  // namespace

OnlineFit::OnlineFit(std::size_t unknowns, const OnlineFitOptions& options)
    : unknowns_(unknowns), options_(options) {
  ENSURE(unknowns >= 1 && unknowns <= kMax && options.memory > 1);
}

void OnlineFit::seed(const Features& coefficients, std::span<const Features> points) {
  squares_ = {};
  products_ = {};
  error_ = {};
  for (std::size_t i = 0; i < unknowns_; ++i)
    fit_[i] = positive(coefficients[i]) ? coefficients[i] : 0;
  for (const Features& x : points)
    if (const double y = predict(x); y > kPredictionMin) add(x, y, options_.seed_weight);
}

double OnlineFit::predict(const Features& x) const {
  double sum = 0;
  for (std::size_t i = 0; i < unknowns_; ++i)
    sum += fit_[i] * x[i];
  return sum;
}

// Takes 1/memory of what is known in the direction of x: A <- A - m * Ax x'A / x'Ax, and b with it
// such that what is known elsewhere stays. x is in units of relative error already.
void OnlineFit::forget(const Features& x) {
  Features known{};  // A x
  double size = 0;   // x' A x
  double product = 0;
  for (std::size_t i = 0; i < unknowns_; ++i) {
    for (std::size_t j = 0; j < unknowns_; ++j)
      known[i] += squares_[i][j] * x[j];
    size += x[i] * known[i];
    product += x[i] * products_[i];
  }
  if (!positive(size)) return;
  for (std::size_t i = 0; i < unknowns_; ++i) {
    for (std::size_t j = 0; j < unknowns_; ++j)
      squares_[i][j] -= known[i] * known[j] / size / options_.memory;
    products_[i] -= known[i] * product / size / options_.memory;
  }
}

void OnlineFit::add(const Features& x, double y, double weight) {
  for (std::size_t i = 0; i < unknowns_; ++i) {
    for (std::size_t j = 0; j < unknowns_; ++j)
      squares_[i][j] += weight * x[i] * x[j] / (y * y);
    products_[i] += weight * x[i] / y;
  }
}

void OnlineFit::observe(const Features& x, double y) {
  if (!positive(y)) return;
  bool any = false;
  for (std::size_t i = 0; i < unknowns_; ++i) {
    if (!(x[i] >= 0) || !std::isfinite(x[i])) return;
    any = any || x[i] > 0;
  }
  if (!any) return;
  double learned = y;
  if (const double expected = predict(x); expected > kPredictionMin) {
    const double log_error = std::log(y / expected);
    const double limit = std::max(kOutlierLog, kErrorsMax * error_.absolute);
    // The first observations are averaged plainly, so that the error does not start at its seed 0.
    const double share = 1 / std::min(kErrorMemory, static_cast<double>(error_.observations) + 1);
    error_.absolute += (std::abs(log_error) - error_.absolute) * share;
    error_.bias += (log_error - error_.bias) * share;
    learned = expected * std::exp(std::clamp(log_error, -limit, limit));
  }
  ++error_.observations;
  if (error_.observations > kDoubtAfter && error_.absolute > kDoubtLog) {
    for (std::size_t i = 0; i < unknowns_; ++i) {
      for (std::size_t j = 0; j < unknowns_; ++j)
        squares_[i][j] *= kDoubtKeep;
      products_[i] *= kDoubtKeep;
    }
  }
  Features scaled{};
  for (std::size_t i = 0; i < unknowns_; ++i)
    scaled[i] = x[i] / learned;
  forget(scaled);
  add(x, learned, 1);
  solve();
}

void OnlineFit::solve() {
  double best = std::numeric_limits<double>::infinity();
  for (unsigned chosen = 1; chosen < 1U << unknowns_; ++chosen) {
    const auto x = solve_subset(squares_, products_, chosen);
    if (!x || std::ranges::any_of(*x, [](double v) { return !(v >= 0) || std::isinf(v); }))
      continue;
    double error = 0;  // the sum of squared errors, less a constant
    for (std::size_t i = 0; i < unknowns_; ++i) {
      error -= 2 * (*x)[i] * products_[i];
      for (std::size_t j = 0; j < unknowns_; ++j)
        error += (*x)[i] * (*x)[j] * squares_[i][j];
    }
    if (error >= best) continue;
    best = error;
    fit_ = *x;
  }
}

}  // namespace penstock
