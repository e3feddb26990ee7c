// Placer::explain(): the last decision, for people.
#include <algorithm>
#include <tuple>

#include "service/gateway/placement.h"

namespace penstock::gateway {

LegExplanation Placer::explain(const Asked& asked, const RankTable::Pool& pool) const {
  const routing::Decision& decision = asked.decision;
  const auto name = [&](std::uint32_t i) {
    return rank_name(workers_[pool.rows[i].worker], pool.rows[i].id);
  };
  LegExplanation out;
  out.policy = asked.policy->name();
  out.reason = routing::to_string(decision.reason);
  out.ranks = static_cast<std::uint32_t>(pool.rows.size());
  out.candidates = decision.candidates;
  if (decision.choice) out.chosen = name(*decision.choice);
  std::vector<std::uint32_t> order(pool.rows.size());
  for (std::uint32_t i = 0; i < order.size(); ++i)
    order[i] = i;
  const std::size_t shown = std::min(order.size(), LegExplanation::kCandidatesShown);
  std::ranges::partial_sort(
      order, order.begin() + static_cast<std::ptrdiff_t>(shown), {},
      [&](std::uint32_t i) { return std::tuple(decision.choice != i, decision.scores[i], i); });
  for (std::size_t i = 0; i < shown; ++i) {
    const routing::RankView& view = pool.views[order[i]];
    const double score = decision.scores[order[i]];
    out.best.push_back(
        {name(order[i]), score == routing::kNotCandidate ? std::nullopt : std::optional(score),
         view.running + view.waiting, view.kv_tokens, view.kv_capacity, view.outstanding_seconds,
         view.compute_seconds, view.transfer_seconds,
         view.load_seconds > 0 ? view.load_outstanding_seconds + view.load_seconds : 0,
         &asked == &others_ ? step_with(*costs_, *model_, order[i], request_) : 0,
         costs_->experts().of(pool.rows[order[i]].id).value_or(0)});
  }
  return out;
}

PlacementExplanation Placer::explain() {
  PlacementExplanation out;
  out.model = request_.model;
  out.tokens = request_.tokens;
  out.cached_tokens = request_.cached;
  out.cached_on_disk = request_.cached_on_disk;
  out.cached_remotely = request_.cached_remotely;
  out.output_tokens = request_.output * request_.choices;
  out.summary = reason_;
  if (prefill_.policy != nullptr) out.prefill = explain(prefill_, model_->ranks.prefill());
  if (others_.policy == nullptr) return out;
  predict_steps(*costs_, *model_, request_.model);
  out.decode = explain(others_, model_->ranks.others());
  return out;
}

}  // namespace penstock::gateway
