#include "core/experts/load_generator.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace penstock::experts {

LoadGenerator::LoadGenerator(const LoadGeneratorOptions& options)
    : options_(options),
      rng_(options.seed),
      base_(options.experts),
      affinity_(options.topics, std::vector<double>(options.experts)),
      topic_(options.topics),
      burst_(options.topics),
      wander_(options.experts),
      chance_(options.experts) {
  for (std::size_t e = 0; e < base_.size(); ++e)
    base_[e] = std::pow(static_cast<double>(e + 1), -options.zipf);
  for (std::size_t e = base_.size(); e-- > 1;)
    std::swap(base_[e], base_[rng_.below(e + 1)]);
  for (auto& topic : affinity_)
    for (double& a : topic)
      a = std::exp(options.affinity_spread * normal());
  for (double& share : topic_)
    share = options.topic_spread * normal();
  for (double& wander : wander_)
    wander = options.expert_spread * normal();
}

// Box and Muller; 1 - u is never 0.
double LoadGenerator::normal() {
  const double u = 1 - rng_.uniform();
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * rng_.uniform());
}

double LoadGenerator::poisson(double mean) {
  if (mean > 50) return std::max(0.0, std::round(mean + std::sqrt(mean) * normal()));
  const double limit = std::exp(-mean);
  double product = rng_.uniform();
  int count = 0;
  for (; product > limit; ++count)
    product *= rng_.uniform();
  return count;
}

std::vector<double> LoadGenerator::next() {
  const LoadGeneratorOptions& o = options_;
  std::vector<double> shares(o.topics);
  for (std::size_t t = 0; t < o.topics; ++t) {
    topic_[t] = o.topic_keep * topic_[t] +
                o.topic_spread * std::sqrt(1 - o.topic_keep * o.topic_keep) * normal();
    const double chance = rng_.uniform();
    burst_[t] = burst_[t] ? chance >= o.burst_end_chance : chance < o.burst_chance;
    shares[t] = std::exp(topic_[t]) * (burst_[t] ? o.burst_factor : 1);
  }
  double sum = 0;
  for (std::size_t e = 0; e < o.experts; ++e) {
    wander_[e] = o.expert_keep * wander_[e] +
                 o.expert_spread * std::sqrt(1 - o.expert_keep * o.expert_keep) * normal();
    double load = 0;
    for (std::size_t t = 0; t < o.topics; ++t)
      load += shares[t] * affinity_[t][e];
    chance_[e] = load * base_[e] * std::exp(wander_[e]);
    sum += chance_[e];
  }
  for (double& chance : chance_)
    chance /= sum;
  return drawn(o.window_picks);
}

std::vector<double> LoadGenerator::step(double picks) {
  return drawn(picks);
}

// Independent Poisson counts: multinomial but for the total, which hardly varies.
std::vector<double> LoadGenerator::drawn(double picks) {
  std::vector<double> loads(chance_.size());
  for (std::size_t e = 0; e < loads.size(); ++e)
    loads[e] = poisson(chance_[e] * picks);
  return loads;
}

}  // namespace penstock::experts
