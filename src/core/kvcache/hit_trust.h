// HitTrust: how far the index's predictions hold for each rank.
//
// Whenever a prompt's answer tells how many of its tokens were cached, that is compared with what
// had been predicted for the rank. Trust is a moving average of the part that came true; hits are
// multiplied with it before ranks are compared, so an index that has drifted from an engine's cache
// (lost events, another eviction, an adapter that nobody told of) costs little, and recovers as its
// predictions do, since the whole prediction is compared whatever the trust.
//
// Units: tokens. Invariants: trust is in [0, 1], and 1 for a rank nothing is known of; memory is
// bounded by the ranks that are not forgotten. Errors: none. Concurrency: one thread.
// Source: docs/kv-events.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "core/kvcache/engine_index.h"

namespace penstock::kvcache {

class HitTrust {
 public:
  struct Rank {
    double trust = 1;
    std::uint64_t predicted = 0;   // tokens, all in all
    std::uint64_t came_true = 0;   // of them
    std::uint64_t unforeseen = 0;  // cached beyond what was predicted
  };

  // A prompt ran on the rank: of its tokens so many were predicted to be cached, and so many were.
  void observed(RankOfWorker rank, std::uint64_t predicted, std::uint64_t cached) {
    Rank& known = ranks_[rank];
    const std::uint64_t hit = std::min(predicted, cached);
    known.predicted += predicted;
    known.came_true += hit;
    known.unforeseen += cached - hit;
    if (predicted == 0) return;
    const double size = static_cast<double>(predicted);
    const double weight = kWeight * std::min(1.0, size / kWholePrompt);
    known.trust += weight * (static_cast<double>(hit) / size - known.trust);
  }
  double trust(RankOfWorker rank) const {
    const auto found = ranks_.find(rank);
    return found == ranks_.end() ? 1 : found->second.trust;
  }
  // What to count on of a predicted hit.
  std::uint32_t trusted(RankOfWorker rank, std::uint32_t predicted) const {
    return static_cast<std::uint32_t>(trust(rank) * predicted);
  }
  const std::map<RankOfWorker, Rank>& ranks() const { return ranks_; }
  // The rank is gone, or holds nothing since it was restarted: what was learned is void.
  void forget(RankOfWorker rank) { ranks_.erase(rank); }

 private:
  static constexpr double kWeight = 0.2;        // of a prompt: three halve what was thought before
  static constexpr double kWholePrompt = 1024;  // tokens; shorter predictions weigh less

  std::map<RankOfWorker, Rank> ranks_;
};

}  // namespace penstock::kvcache
