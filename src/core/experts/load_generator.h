// Expert loads as production might see them: skewed, drifting, bursty, and moving by topic.
//
// One layer. Every expert has a base popularity (Zipf, shuffled) and an affinity to each of some
// topics (log-normal). The shares of topics wander from window to window (a log-normal first-order
// process) and now and then one bursts for a few windows; each expert wanders a little by itself.
// So experts of one topic rise and fall together. A window's loads are the expected counts with
// multinomial noise; step() draws single steps.
//
// Invariants: equal seeds give equal loads. Units: tokens (picks of one of the top-k experts).
// Concurrency: one thread. Source: docs/experts.md; the parameters are ours, no public trace of
// expert loads over time is known to us.
#pragma once

#include <cstdint>
#include <vector>

#include "base/rng.h"

namespace penstock::experts {

struct LoadGeneratorOptions {
  std::size_t experts = 384;
  double zipf = 0.5;  // exponent of base popularity
  std::size_t topics = 16;
  double affinity_spread = 0.6;  // of log affinity
  double topic_spread = 0.3;     // of log topic share in the long run
  double topic_keep = 0.95;      // correlation of topic shares from window to window
  double expert_spread = 0.05;   // of log expert wander, in the long run
  double expert_keep = 0.9;
  double burst_chance = 0.02;               // per topic and window
  double burst_factor = 3;                  // on the topic's share
  double burst_end_chance = 0.3;            // per window
  double window_picks = 1000.0 * 8192 * 8;  // 1,000 steps of 8,192 tokens, top-8
  std::uint64_t seed = 1;
};

class LoadGenerator {
 public:
  explicit LoadGenerator(const LoadGeneratorOptions& options);

  // Moves to the next window and returns its loads.
  std::vector<double> next();
  // One step of `picks` within the present window.
  std::vector<double> step(double picks);

 private:
  double normal();
  double poisson(double mean);
  std::vector<double> drawn(double picks);

  LoadGeneratorOptions options_;
  Rng rng_;
  std::vector<double> base_;
  std::vector<std::vector<double>> affinity_;  // [topics][experts]
  std::vector<double> topic_;                  // log shares
  std::vector<bool> burst_;
  std::vector<double> wander_;  // log, per expert
  std::vector<double> chance_;  // of the present window
};

}  // namespace penstock::experts
