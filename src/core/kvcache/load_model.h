// Load or recompute: which part of a hit is worth fetching, decided by predicted time.
//
// Two things are measured while serving: how fast each tier delivers (bytes over time, older
// loads forgotten with a half-life; after one without loads the speed fades back to the seed, so
// that a slow spell does not end loading, and with it measuring, for ever) and how long prefill
// takes, as T(new, ctx) = a + b*new + c*new*(ctx + new/2), fitted by least squares with
// coefficients >= 0. Errors are relative, so short and long chunks count alike; each observation
// makes the older ones count a little less; one that is far off (a stall) is pulled in before it
// counts. Until there is data, the seeds of the options hold.
//
// decide() compares, for every point where the hit could resume, load time + prefill of the rest,
// and takes the least. What a tier has under way comes before what is asked of it. Points below
// `hit_tokens_min` are not worth the trouble. Loading and computing are taken one after the other:
// the fetch begins in the queue, so overlap only makes it better.
//
// Invariants: the decision's numbers are those it was made with. Coefficients are never negative.
// Errors: observations of no tokens, bytes or time are ignored. Concurrency: one thread.
// Source: design.md sections 6, 7; facts/kvcache.md 6c, 6d.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/units.h"
#include "domain/kv.h"

namespace penstock::kvcache {

class PrefillModel {
 public:
  explicit PrefillModel(const PrefillCoefficients& seed);

  // A prefill of `fresh` tokens after `context` tokens took this long.
  void observe(Tokens context, Tokens fresh, Duration took);
  Duration predict(Tokens context, Tokens fresh) const;
  const PrefillCoefficients& coefficients() const { return fit_; }

 private:
  using Features = std::array<double, 3>;
  static Features features(Tokens context, Tokens fresh);
  double seconds(const Features& x) const;
  void add(const Features& x, double took);
  void solve();

  PrefillCoefficients fit_;
  double usual_error_ = 0;  // of |log(took / predicted)|, recent observations
  // Weighted sums of x*x^T and x*took of all observations, scaled to relative errors.
  std::array<std::array<double, 3>, 3> squares_{};
  std::array<double, 3> products_{};
};

struct LoadModelOptions {
  // Bytes per second by KvTier until measured: device, host, disk, peer, cluster.
  std::array<double, 5> bandwidth{20e9, 8e9, 1e9, 1e9, 0.4e9};
  Duration half_life = std::chrono::seconds(60);
  Tokens hit_tokens_min{0};  // shorter hits are not worth the trouble
};

using TierBytes = std::array<std::uint64_t, 5>;  // by KvTier

// One point where a hit could resume: what lies before it, and in which tiers.
struct ResumeCandidate {
  Tokens hit;
  TierBytes bytes{};  // to load
};

struct LoadDecision {
  Tokens hit;                           // to load; 0: compute all
  MissReason rest = MissReason::kNone;  // kRecomputeFaster: a longer hit was known and not taken
  Duration load{};                      // predicted, of what is loaded
  Duration prefill_after{};             // predicted, of the tokens after the hit
  Duration prefill_without{};           // predicted, of the whole prompt
  std::uint64_t bytes = 0;              // to load
  std::size_t candidate = 0;            // index of the point taken; meaningless when hit is 0
  Duration saved() const { return prefill_without - load - prefill_after; }
};

class LoadModel {
 public:
  explicit LoadModel(const LoadModelOptions& options);

  void observe_load(KvTier tier, std::uint64_t bytes, Duration took, Instant now);

  // The best of the points for a prompt of `prompt` tokens; none, or none that pays: hit 0.
  LoadDecision decide(Tokens prompt, std::span<const ResumeCandidate> candidates,
                      const PrefillModel& prefill, const TierBytes& under_way, Instant now) const;
  // A decision's load has ended with `granted` tokens of that prompt: counts it, and whether
  // computing would have been faster.
  void record(const LoadDecision& decision, Tokens prompt, Tokens granted,
              const PrefillModel& prefill, Duration load);

  double bytes_per_second(KvTier tier, Instant now) const;
  std::uint64_t loads() const { return loads_; }
  std::uint64_t loads_slower_than_recompute() const { return slower_; }

 private:
  struct Flow {
    double rate = 0;     // bytes per second
    double seconds = 0;  // of loading that it was measured over
    Instant last{};
  };

  // The part that is left after so long.
  double keep(Duration age) const;

  LoadModelOptions options_;
  std::array<Flow, 5> flows_{};
  std::uint64_t loads_ = 0;
  std::uint64_t slower_ = 0;
};

}  // namespace penstock::kvcache
