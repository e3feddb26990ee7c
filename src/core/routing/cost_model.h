// What work costs, in time: prefill, decode steps, loads from a KV tier, transfers between zones.
//
//   T_prefill(new, ctx) = a + b*new + c*new*(ctx + new/2)      T_load(bytes, tier) = l + bytes/r
//   T_step(batch, kv)   = d + e*batch + f*kv                   T_transfer(bytes, zones) = l +
//   bytes/r
//
// One CostModels per engine type. Each law is an OnlineFit (base/online_fit.h): coefficients are
// never negative, seeded from a profile, fitted to what step frames report, old regimes forgotten.
//
// The ranks of one expert-parallel group step together: the group's step takes the time of its
// slowest rank, times moe_lb (how much more the most loaded expert rank does than the mean). Ranks
// without work run a dummy step of the base cost; a group without any work does not step.
//
// Invariants: predictions are finite and >= 0; 0 for no work. Equal observations, equal model.
// Units: seconds as double, because all of it is arithmetic; Tokens and Bytes at the interface.
// Errors: impossible observations are ignored. Concurrency: one thread.
// Source: design.md section 7.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/online_fit.h"
#include "base/rng.h"
#include "base/units.h"
#include "domain/kv.h"

namespace penstock::routing {

double to_seconds(Duration duration);
// Clamped to [0, 30 years].
Duration to_duration(double seconds);

struct StepCoefficients {
  double base = 0;          // d, seconds
  double per_request = 0;   // e, seconds per running request
  double per_kv_token = 0;  // f, seconds per KV token attended to
  bool operator==(const StepCoefficients&) const = default;
};

// latency + bytes / bytes_per_second.
struct FlowCoefficients {
  double latency = 0;           // seconds
  double bytes_per_second = 0;  // 0: this way does not exist
  bool operator==(const FlowCoefficients&) const = default;
};

// The ratio of the slowest expert rank to the mean, per step: 1 + (mean - 1) * a log-normal factor
// of mean 1 with this spread.
struct MoeImbalance {
  double mean = 1;
  double spread = 0;  // standard deviation of the factor's logarithm
  bool operator==(const MoeImbalance&) const = default;
};
double sample(const MoeImbalance& imbalance, Rng& rng);

// What a decode rank holds in one step.
struct StepLoad {
  std::int64_t batch = 0;
  std::int64_t kv_tokens = 0;
  bool operator==(const StepLoad&) const = default;
};
// What a prefill rank computes in one step.
struct ChunkLoad {
  std::int64_t fresh = 0;
  std::int64_t context = 0;
  bool operator==(const ChunkLoad&) const = default;
};

double prefill_seconds(const PrefillCoefficients& c, double fresh, double context);
double step_seconds(const StepCoefficients& c, double batch, double kv_tokens);
// The group's step: the slowest rank times moe_lb (>= 1). 0 when no rank has work.
double group_step_seconds(const StepCoefficients& c, std::span<const StepLoad> ranks,
                          double moe_lb);
double group_prefill_seconds(const PrefillCoefficients& c, std::span<const ChunkLoad> ranks,
                             double moe_lb);
// The most tokens after `context` that fit the budget; 0 when not even one does, `tokens_max` when
// all do.
std::int64_t chunk_within(const PrefillCoefficients& c, std::int64_t context, double budget_seconds,
                          std::int64_t tokens_max);

enum class CostLaw : std::uint8_t { kPrefill, kStep, kLoad, kTransfer };
std::string_view to_string(CostLaw law);

// Zones are numbered by whoever knows their names.
struct ZonePair {
  std::uint16_t from = 0;
  std::uint16_t to = 0;
  auto operator<=>(const ZonePair&) const = default;
};

struct CostSeeds {
  PrefillCoefficients prefill;
  StepCoefficients step;
  std::array<FlowCoefficients, 5> load{};  // by KvTier
  FlowCoefficients transfer_same_zone;
  FlowCoefficients transfer_other_zone;
  MoeImbalance prefill_moe;
  MoeImbalance decode_moe;
  bool operator==(const CostSeeds&) const = default;
};

class CostModels {
 public:
  // Pairs beyond this many share the two seeds' models.
  static constexpr std::size_t kZonePairsMax = 256;

  explicit CostModels(const CostSeeds& seeds);

  Duration prefill(Tokens fresh, Tokens context) const;
  Duration step(std::int64_t batch, Tokens kv) const;
  // Duration::max() for a tier or way that does not exist.
  Duration load(Bytes bytes, KvTier tier) const;
  Duration transfer(Bytes bytes, ZonePair zones) const;

  // One chunk that ran alone on its rank, and one step of an engine without a group.
  void observe_prefill(Tokens fresh, Tokens context, Duration took);
  void observe_step(std::int64_t batch, Tokens kv, Duration took);
  // A group's step: explained by the rank that the model finds slowest, without the mean moe_lb.
  void observe_group_step(std::span<const StepLoad> ranks, Duration took);
  void observe_group_prefill(std::span<const ChunkLoad> ranks, Duration took);
  void observe_load(Bytes bytes, KvTier tier, Duration took);
  void observe_transfer(Bytes bytes, ZonePair zones, Duration took);

  PrefillCoefficients prefill_coefficients() const;
  StepCoefficients step_coefficients() const;
  const CostSeeds& seeds() const { return seeds_; }
  // How far predictions have been off; for loads and transfers over all tiers and pairs.
  FitError error(CostLaw law) const;

 private:
  struct PairModel {
    ZonePair zones;
    OnlineFit fit;
  };
  const OnlineFit& transfer_fit(ZonePair zones) const;
  OnlineFit& transfer_fit_to_learn(ZonePair zones);

  CostSeeds seeds_;
  OnlineFit prefill_;
  OnlineFit step_;
  std::vector<OnlineFit> load_;         // by KvTier
  std::array<OnlineFit, 2> transfers_;  // same zone, other zone: until a pair has been observed
  std::vector<PairModel> pairs_;        // sorted by zones
};

}  // namespace penstock::routing
