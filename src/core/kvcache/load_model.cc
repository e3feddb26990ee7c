#include "core/kvcache/load_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace penstock::kvcache {
namespace {

// An observation makes those before it count this much less: 200 of them are remembered.
constexpr double kForget = 1 - 1.0 / 200;
// What the seeds count for, in observations each.
constexpr double kSeedWeight = 2;
// An observation further from the prediction than this many times (as a logarithm), or three times
// the usual error, is pulled in to it. The usual error grows when the model is off for good, so a
// changed engine is followed while a stall is not.
constexpr double kOutlierLog = 1.4;  // 4 times
constexpr double kErrorsMax = 3;
constexpr double kErrorForget = 1.0 / 20;
// Predictions below this are none.
constexpr double kSecondsMin = 1e-9;
// A seed bandwidth counts like a load of this long.
constexpr double kSeedSeconds = 0.1;

double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

Duration to_duration(double seconds) {
  constexpr double kMax = 1e9;  // 30 years
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::min(seconds, kMax)));
}

using Row = std::array<double, 4>;

// Solves the normal equations of the unknowns in `chosen` (bits), the others 0; nullopt when they
// are singular.
std::optional<std::array<double, 3>> solve_subset(
    const std::array<std::array<double, 3>, 3>& squares, const std::array<double, 3>& products,
    unsigned chosen) {
  std::array<Row, 3> rows{};
  for (std::size_t i = 0; i < 3; ++i) {
    const bool in = (chosen >> i & 1U) != 0;
    for (std::size_t j = 0; j < 3; ++j)
      rows[i][j] = in && (chosen >> j & 1U) != 0 ? squares[i][j] : (i == j ? 1 : 0);
    rows[i][3] = in ? products[i] : 0;
  }
  for (std::size_t i = 0; i < 3; ++i) {  // positive definite: no pivoting needed
    if (rows[i][i] <= 1e-12 * squares[i][i]) return std::nullopt;
    for (std::size_t k = i + 1; k < 3; ++k) {
      const double factor = rows[k][i] / rows[i][i];
      for (std::size_t j = i; j < 4; ++j)
        rows[k][j] -= factor * rows[i][j];
    }
  }
  std::array<double, 3> x{};
  for (std::size_t i = 3; i-- > 0;) {
    double sum = rows[i][3];
    for (std::size_t j = i + 1; j < 3; ++j)
      sum -= rows[i][j] * x[j];
    x[i] = sum / rows[i][i];
  }
  return x;
}

}  // namespace

// --- prefill

PrefillModel::PrefillModel(const PrefillCoefficients& seed) : fit_(seed) {
  constexpr std::pair<std::int64_t, std::int64_t> kPoints[] = {
      {0, 1}, {0, 512}, {0, 8192}, {16384, 512}, {65536, 8192}};  // context, fresh
  for (const auto& [context, fresh] : kPoints) {
    const Features x = features(Tokens(context), Tokens(fresh));
    const double took = seconds(x);
    if (took < kSecondsMin) continue;
    for (double weight = kSeedWeight; weight > 0; --weight)
      add(x, took);
  }
}

PrefillModel::Features PrefillModel::features(Tokens context, Tokens fresh) {
  const auto n = static_cast<double>(fresh.value);
  return {1, n, n * (static_cast<double>(context.value) + n / 2)};
}

double PrefillModel::seconds(const Features& x) const {
  return fit_.base * x[0] + fit_.per_token * x[1] + fit_.per_pair * x[2];
}

void PrefillModel::add(const Features& x, double took) {
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j)
      squares_[i][j] = squares_[i][j] * kForget + x[i] * x[j] / (took * took);
    products_[i] = products_[i] * kForget + x[i] / took;
  }
}

void PrefillModel::observe(Tokens context, Tokens fresh, Duration took) {
  if (fresh.value <= 0 || context.value < 0 || took <= Duration::zero()) return;
  const Features x = features(context, fresh);
  const double expected = seconds(x);
  if (expected >= kSecondsMin) {
    const double log_error = std::log(to_seconds(took) / expected);
    const double limit = std::max(kOutlierLog, kErrorsMax * usual_error_);
    usual_error_ += (std::abs(log_error) - usual_error_) * kErrorForget;
    add(x, expected * std::exp(std::clamp(log_error, -limit, limit)));
  } else {
    add(x, to_seconds(took));
  }
  solve();
}

// Non-negative least squares of three unknowns: the best of all subsets whose solution is positive.
void PrefillModel::solve() {
  double best = std::numeric_limits<double>::infinity();
  for (unsigned chosen = 1; chosen < 8; ++chosen) {
    const auto x = solve_subset(squares_, products_, chosen);
    if (!x || std::ranges::any_of(*x, [](double v) { return !(v >= 0) || std::isinf(v); }))
      continue;
    double error = 0;  // the sum of squared errors, less a constant
    for (std::size_t i = 0; i < 3; ++i) {
      error -= 2 * (*x)[i] * products_[i];
      for (std::size_t j = 0; j < 3; ++j)
        error += (*x)[i] * (*x)[j] * squares_[i][j];
    }
    if (error >= best) continue;
    best = error;
    fit_ = {(*x)[0], (*x)[1], (*x)[2]};
  }
}

Duration PrefillModel::predict(Tokens context, Tokens fresh) const {
  return fresh.value <= 0 ? Duration::zero() : to_duration(seconds(features(context, fresh)));
}

// --- load or recompute

LoadModel::LoadModel(const LoadModelOptions& options) : options_(options) {
  for (std::size_t tier = 0; tier < flows_.size(); ++tier)
    flows_[tier] = {options_.bandwidth[tier], kSeedSeconds, Instant{}};
}

void LoadModel::observe_load(KvTier tier, std::uint64_t bytes, Duration took, Instant now) {
  if (bytes == 0 || took <= Duration::zero()) return;
  Flow& flow = flows_[std::to_underlying(tier)];
  const double rate = bytes_per_second(tier, now);
  const double before = flow.seconds * keep(now - flow.last);
  flow.seconds = before + to_seconds(took);
  flow.rate = (rate * before + static_cast<double>(bytes)) / flow.seconds;
  flow.last = std::max(flow.last, now);
}

double LoadModel::keep(Duration age) const {
  return std::exp2(-to_seconds(std::max(age, Duration::zero())) / to_seconds(options_.half_life));
}

// Only a pause longer than one half-life fades the speed: under way, the seed must not pull. It
// fades by factors, not by differences: a thousandth of the seed's speed is a 32nd one half-life
// later, not a half.
double LoadModel::bytes_per_second(KvTier tier, Instant now) const {
  const Flow& flow = flows_[std::to_underlying(tier)];
  const double seed = options_.bandwidth[std::to_underlying(tier)];
  return seed * std::pow(flow.rate / seed, keep(now - flow.last - options_.half_life));
}

LoadDecision LoadModel::decide(Tokens prompt, std::span<const ResumeCandidate> candidates,
                               const PrefillModel& prefill, const TierBytes& under_way,
                               Instant now) const {
  LoadDecision best;
  best.prefill_without = prefill.predict(Tokens(0), prompt);
  best.prefill_after = best.prefill_without;
  Tokens longest;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const ResumeCandidate& candidate = candidates[i];
    longest = std::max(longest, candidate.hit);
    if (candidate.hit < options_.hit_tokens_min || candidate.hit > prompt) continue;
    LoadDecision with{.hit = candidate.hit};
    double seconds = 0;
    for (std::size_t tier = 0; tier < candidate.bytes.size(); ++tier) {
      if (candidate.bytes[tier] == 0) continue;
      with.bytes += candidate.bytes[tier];
      seconds += static_cast<double>(candidate.bytes[tier] + under_way[tier]) /
                 bytes_per_second(static_cast<KvTier>(tier), now);
    }
    with.load = to_duration(seconds);
    with.prefill_after = prefill.predict(candidate.hit, prompt - candidate.hit);
    with.prefill_without = best.prefill_without;
    with.candidate = i;
    if (with.saved() > best.saved()) best = with;
  }
  if (best.hit < longest) best.rest = MissReason::kRecomputeFaster;
  return best;
}

void LoadModel::record(const LoadDecision& decision, Tokens prompt, Tokens granted,
                       const PrefillModel& prefill, Duration load) {
  if (decision.hit.value == 0) return;
  ++loads_;
  const Duration after = prefill.predict(granted, prompt - granted);
  if (load + after > decision.prefill_without) ++slower_;
}

}  // namespace penstock::kvcache
