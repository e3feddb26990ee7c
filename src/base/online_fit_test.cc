#include "base/online_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

using Features = OnlineFit::Features;

double dot(const Features& a, const Features& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += a[i] * b[i];
  return sum;
}

// A decode step's features: 1, requests, KV tokens.
Features random_step(Rng& rng) {
  return {1, static_cast<double>(1 + rng.below(256)), static_cast<double>(rng.below(2'000'000)), 0};
}

TEST_CASE("a noiseless law is found from any seed") {
  const Features truth{0.012, 4e-5, 2e-9, 0};
  for (const Features& seed : {Features{}, Features{1, 1e-3, 1e-6, 0}, Features{1e-4, 0, 0, 0}}) {
    OnlineFit fit(3);
    fit.seed(seed, std::vector<Features>{{1, 1, 0, 0}, {1, 64, 1e5, 0}, {1, 256, 1e6, 0}});
    Rng rng(1);
    for (int i = 0; i < 3000; ++i) {
      const Features x = random_step(rng);
      fit.observe(x, dot(truth, x));
    }
    for (int i = 0; i < 100; ++i) {
      const Features x = random_step(rng);
      CHECK(fit.predict(x) == doctest::Approx(dot(truth, x)).epsilon(0.01));
    }
    CHECK(fit.error().absolute < 0.01);
  }
}

TEST_CASE("coefficients are never negative, whatever is observed") {
  Rng rng(2);
  for (int round = 0; round < 50; ++round) {
    OnlineFit fit(1 + static_cast<std::size_t>(round) % 4);
    for (int i = 0; i < 100; ++i) {
      Features x{};
      for (double& v : x)
        v = rng.below(3) == 0 ? 0 : std::exp(20 * rng.uniform() - 10);
      // Falling in the second feature: no non-negative law fits.
      fit.observe(x, 1 / (1 + x[1]) * std::exp(rng.uniform()));
      for (const double c : fit.coefficients()) {
        REQUIRE(c >= 0);
        REQUIRE(std::isfinite(c));
      }
    }
  }
}

// The best of all c >= 0 on a grid is no better than what the subsets give.
TEST_CASE("the solution is the constrained optimum") {
  Rng rng(3);
  for (int round = 0; round < 20; ++round) {
    OnlineFit fit(2, {.memory = 1e9});
    std::vector<std::pair<Features, double>> seen;
    for (int i = 0; i < 12; ++i) {
      const Features x{1, rng.uniform(), 0, 0};
      const double y = 1 + (rng.uniform() - 0.6) * x[1];
      // Without outlier damping: observe() sees a prediction only once the fit is non-zero, so
      // keep within a factor of four of it.
      const double p = fit.predict(x);
      const double used = p > 0 ? std::clamp(y, p / 4, p * 4) : y;
      fit.observe(x, used);
      seen.emplace_back(x, used);
    }
    const auto loss = [&](double a, double b) {
      double sum = 0;
      for (const auto& [x, y] : seen)
        sum += std::pow((a * x[0] + b * x[1] - y) / y, 2);
      return sum;
    };
    double best = 1e300;
    for (double a = 0; a <= 2; a += 0.01)
      for (double b = 0; b <= 2; b += 0.01)
        best = std::min(best, loss(a, b));
    CHECK(loss(fit.coefficients()[0], fit.coefficients()[1]) <= best + 1e-6);
  }
}

TEST_CASE("a changed engine is followed, a stall is not") {
  OnlineFit fit(3);
  Rng rng(4);
  const Features slow{0.02, 8e-5, 4e-9, 0};
  const Features fast{0.01, 4e-5, 2e-9, 0};
  for (int i = 0; i < 2000; ++i) {
    const Features x = random_step(rng);
    fit.observe(x, dot(slow, x) * (0.95 + 0.1 * rng.uniform()));
  }
  const Features probe{1, 128, 500'000, 0};
  CHECK(fit.predict(probe) == doctest::Approx(dot(slow, probe)).epsilon(0.05));

  fit.observe(probe, 30.0);  // a stall of half a minute
  CHECK(fit.predict(probe) < dot(slow, probe) * 1.1);

  for (int i = 0; i < 1000; ++i) {
    const Features x = random_step(rng);
    fit.observe(x, dot(fast, x) * (0.95 + 0.1 * rng.uniform()));
  }
  CHECK(fit.predict(probe) == doctest::Approx(dot(fast, probe)).epsilon(0.05));
}

TEST_CASE("what has not been observed for long is kept") {
  OnlineFit fit(2);
  Rng rng(5);
  const Features truth{0.01, 1e-5, 0, 0};
  for (int i = 0; i < 500; ++i) {
    const Features x{1, static_cast<double>(rng.below(10'000)), 0, 0};
    fit.observe(x, dot(truth, x));
  }
  // A night of one length only: plain forgetting would make the matrix singular.
  for (int i = 0; i < 20'000; ++i)
    fit.observe({1, 100, 0, 0}, dot(truth, {1, 100, 0, 0}));
  CHECK(fit.predict({1, 9000, 0, 0}) == doctest::Approx(0.1).epsilon(0.02));
}

TEST_CASE("the error is that of predictions made before learning") {
  OnlineFit fit(1);
  fit.seed({1, 0, 0, 0}, std::vector<Features>{{1, 0, 0, 0}});
  CHECK(fit.error() == FitError{});
  fit.observe({1, 0, 0, 0}, 2);
  CHECK(fit.error().observations == 1);
  CHECK(fit.error().absolute == doctest::Approx(std::log(2.0)));
  CHECK(fit.error().bias == doctest::Approx(std::log(2.0)));
  for (int i = 0; i < 500; ++i)
    fit.observe({1, 0, 0, 0}, 2);
  CHECK(fit.error().absolute < 0.01);
}

TEST_CASE("observations that make no sense are ignored") {
  OnlineFit fit(2);
  fit.observe({1, 2, 0, 0}, 3);
  const Features before = fit.coefficients();
  fit.observe({1, 2, 0, 0}, 0);
  fit.observe({1, 2, 0, 0}, -1);
  fit.observe({1, 2, 0, 0}, std::nan(""));
  fit.observe({1, -2, 0, 0}, 1);
  fit.observe({1, std::numeric_limits<double>::infinity(), 0, 0}, 1);
  fit.observe({0, 0, 0, 0}, 1);
  CHECK(fit.coefficients() == before);
  CHECK(fit.error().observations == 1);
}

}  // namespace
}  // namespace penstock
