#include "core/routing/cost_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace penstock::routing {
namespace {

using Features = OnlineFit::Features;

Features prefill_features(double fresh, double context) {
  return {1, fresh, fresh * (context + fresh / 2), 0};
}

Features step_features(double batch, double kv_tokens) {
  return {1, batch, kv_tokens, 0};
}

OnlineFit seeded(std::size_t unknowns, const Features& c, std::span<const Features> points) {
  OnlineFit fit(unknowns);
  fit.seed(c, points);
  return fit;
}

OnlineFit flow_fit(const FlowCoefficients& flow) {
  const Features points[] = {{1, 0, 0, 0}, {1, 1e6, 0, 0}, {1, 1e9, 0, 0}};
  if (flow.bytes_per_second <= 0) return OnlineFit(2);
  return seeded(2, {flow.latency, 1 / flow.bytes_per_second, 0, 0}, points);
}

Duration flow_duration(const OnlineFit& fit, Bytes bytes) {
  if (bytes.value <= 0) return Duration::zero();
  const double seconds = fit.predict({1, static_cast<double>(bytes.value), 0, 0});
  return seconds > 0 ? to_duration(seconds) : Duration::max();
}

void merge(FitError& into, const FitError& other) {
  const double n = static_cast<double>(into.observations);
  const double m = static_cast<double>(other.observations);
  if (m == 0) return;
  into.absolute = (into.absolute * n + other.absolute * m) / (n + m);
  into.bias = (into.bias * n + other.bias * m) / (n + m);
  into.observations += other.observations;
}

}  // namespace

double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

Duration to_duration(double seconds) {
  constexpr double kMax = 1e9;  // 30 years
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::clamp(seconds, 0.0, kMax)));
}

double sample(const MoeImbalance& imbalance, Rng& rng) {
  if (imbalance.mean <= 1) return 1;
  if (imbalance.spread <= 0) return imbalance.mean;
  // Box and Muller's normal from two uniforms; 1 - u is never 0.
  const double u = 1 - rng.uniform();
  const double normal =
      std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * rng.uniform());
  const double factor =
      std::exp(imbalance.spread * normal - imbalance.spread * imbalance.spread / 2);
  return 1 + (imbalance.mean - 1) * factor;
}

double prefill_seconds(const PrefillCoefficients& c, double fresh, double context) {
  if (fresh <= 0) return 0;
  return c.seconds(context, fresh);
}

double step_seconds(const StepCoefficients& c, double batch, double kv_tokens) {
  return batch <= 0 ? 0 : c.base + c.per_request * batch + c.per_kv_token * kv_tokens;
}

double group_step_seconds(const StepCoefficients& c, std::span<const StepLoad> ranks,
                          double moe_lb) {
  double slowest = 0;
  for (const StepLoad& rank : ranks)
    slowest = std::max(slowest, step_seconds(c, static_cast<double>(rank.batch),
                                             static_cast<double>(rank.kv_tokens)));
  return slowest * std::max(1.0, moe_lb);
}

double group_prefill_seconds(const PrefillCoefficients& c, std::span<const ChunkLoad> ranks,
                             double moe_lb) {
  double slowest = 0;
  for (const ChunkLoad& rank : ranks)
    slowest = std::max(slowest, prefill_seconds(c, static_cast<double>(rank.fresh),
                                                static_cast<double>(rank.context)));
  return slowest * std::max(1.0, moe_lb);
}

// The root of c/2 n^2 + (b + c*ctx) n = budget - a, in the form that does not cancel and allows
// c = 0; then corrected by at most one for rounding.
std::int64_t chunk_within(const PrefillCoefficients& c, std::int64_t context, double budget_seconds,
                          std::int64_t tokens_max) {
  if (tokens_max <= 0) return 0;
  const double room = budget_seconds - c.base;
  if (!(room > 0)) return 0;
  const double ctx = static_cast<double>(std::max<std::int64_t>(context, 0));
  const double linear = c.per_token + c.per_pair * ctx;
  const double divisor = linear + std::sqrt(linear * linear + 2 * c.per_pair * room);
  const double all = static_cast<double>(tokens_max);
  if (!(divisor > 0) || 2 * room >= divisor * (all + 1)) return tokens_max;
  auto n = std::min(static_cast<std::int64_t>(2 * room / divisor) + 1, tokens_max);
  while (n > 0 && prefill_seconds(c, static_cast<double>(n), ctx) > budget_seconds)
    --n;
  return n;
}

std::string_view to_string(CostLaw law) {
  switch (law) {
    case CostLaw::kPrefill:
      return "prefill";
    case CostLaw::kStep:
      return "step";
    case CostLaw::kLoad:
      return "load";
    case CostLaw::kTransfer:
      return "transfer";
  }
  std::unreachable();
}

CostModels::CostModels(const CostSeeds& seeds)
    : seeds_(seeds),
      prefill_(seeded(
          3, {seeds.prefill.base, seeds.prefill.per_token, seeds.prefill.per_pair, 0},
          std::array{prefill_features(1, 0), prefill_features(512, 0), prefill_features(8192, 0),
                     prefill_features(512, 16384), prefill_features(8192, 65536)})),
      step_(seeded(3, {seeds.step.base, seeds.step.per_request, seeds.step.per_kv_token, 0},
                   std::array{step_features(1, 100), step_features(64, 64 * 1000),
                              step_features(256, 256 * 8000), step_features(8, 8 * 200'000)})),
      transfers_{flow_fit(seeds.transfer_same_zone), flow_fit(seeds.transfer_other_zone)} {
  for (const FlowCoefficients& flow : seeds.load)
    load_.push_back(flow_fit(flow));
}

Duration CostModels::prefill(Tokens fresh, Tokens context) const {
  if (fresh.value <= 0) return Duration::zero();
  return to_duration(prefill_.predict(
      prefill_features(static_cast<double>(fresh.value), static_cast<double>(context.value))));
}

Duration CostModels::step(std::int64_t batch, Tokens kv) const {
  if (batch <= 0) return Duration::zero();
  return to_duration(
      step_.predict(step_features(static_cast<double>(batch), static_cast<double>(kv.value))));
}

Duration CostModels::load(Bytes bytes, KvTier tier) const {
  return flow_duration(load_[std::to_underlying(tier)], bytes);
}

Duration CostModels::transfer(Bytes bytes, ZonePair zones) const {
  return flow_duration(transfer_fit(zones), bytes);
}

void CostModels::observe_prefill(Tokens fresh, Tokens context, Duration took) {
  if (fresh.value <= 0 || context.value < 0) return;
  prefill_.observe(
      prefill_features(static_cast<double>(fresh.value), static_cast<double>(context.value)),
      to_seconds(took));
}

void CostModels::observe_step(std::int64_t batch, Tokens kv, Duration took) {
  if (batch <= 0 || kv.value < 0) return;
  step_.observe(step_features(static_cast<double>(batch), static_cast<double>(kv.value)),
                to_seconds(took));
}

void CostModels::observe_group_step(std::span<const StepLoad> ranks, Duration took) {
  const StepLoad* slowest = nullptr;
  double most = -1;
  for (const StepLoad& rank : ranks) {
    if (rank.batch <= 0) continue;
    const double seconds = step_.predict(
        step_features(static_cast<double>(rank.batch), static_cast<double>(rank.kv_tokens)));
    if (seconds <= most) continue;
    most = seconds;
    slowest = &rank;
  }
  if (slowest == nullptr) return;
  observe_step(slowest->batch, Tokens(slowest->kv_tokens),
               to_duration(to_seconds(took) / std::max(1.0, seeds_.decode_moe.mean)));
}

void CostModels::observe_group_prefill(std::span<const ChunkLoad> ranks, Duration took) {
  const ChunkLoad* slowest = nullptr;
  double most = -1;
  for (const ChunkLoad& rank : ranks) {
    if (rank.fresh <= 0) continue;
    const double seconds = prefill_.predict(
        prefill_features(static_cast<double>(rank.fresh), static_cast<double>(rank.context)));
    if (seconds <= most) continue;
    most = seconds;
    slowest = &rank;
  }
  if (slowest == nullptr) return;
  observe_prefill(Tokens(slowest->fresh), Tokens(slowest->context),
                  to_duration(to_seconds(took) / std::max(1.0, seeds_.prefill_moe.mean)));
}

void CostModels::observe_load(Bytes bytes, KvTier tier, Duration took) {
  if (bytes.value <= 0) return;
  load_[std::to_underlying(tier)].observe({1, static_cast<double>(bytes.value), 0, 0},
                                          to_seconds(took));
}

void CostModels::observe_transfer(Bytes bytes, ZonePair zones, Duration took) {
  if (bytes.value <= 0) return;
  transfer_fit_to_learn(zones).observe({1, static_cast<double>(bytes.value), 0, 0},
                                       to_seconds(took));
}

const OnlineFit& CostModels::transfer_fit(ZonePair zones) const {
  const auto at = std::ranges::lower_bound(pairs_, zones, {}, &PairModel::zones);
  if (at != pairs_.end() && at->zones == zones) return at->fit;
  return transfers_[zones.from == zones.to ? 0 : 1];
}

OnlineFit& CostModels::transfer_fit_to_learn(ZonePair zones) {
  const auto at = std::ranges::lower_bound(pairs_, zones, {}, &PairModel::zones);
  if (at != pairs_.end() && at->zones == zones) return at->fit;
  OnlineFit& shared = transfers_[zones.from == zones.to ? 0 : 1];
  if (pairs_.size() >= kZonePairsMax) return shared;
  return pairs_.insert(at, {zones, shared})->fit;
}

PrefillCoefficients CostModels::prefill_coefficients() const {
  const Features& c = prefill_.coefficients();
  return {c[0], c[1], c[2]};
}

StepCoefficients CostModels::step_coefficients() const {
  const Features& c = step_.coefficients();
  return {c[0], c[1], c[2]};
}

FitError CostModels::error(CostLaw law) const {
  FitError total;
  switch (law) {
    case CostLaw::kPrefill:
      return prefill_.error();
    case CostLaw::kStep:
      return step_.error();
    case CostLaw::kLoad:
      for (const OnlineFit& fit : load_)
        merge(total, fit.error());
      return total;
    case CostLaw::kTransfer:
      for (const OnlineFit& fit : transfers_)
        merge(total, fit.error());
      for (const PairModel& pair : pairs_)
        merge(total, pair.fit.error());
      return total;
  }
  std::unreachable();
}

}  // namespace penstock::routing
