#include "core/routing/decode_balancer.h"

#include <algorithm>

namespace penstock::routing {

void DecodeBalancer::place(const PlaceRequest& request, std::span<const RankView> ranks, Rng&,
                           Decision& out) {
  if (!open_decision(request, ranks, out)) return;
  const double brings = static_cast<double>(kv_needed(request));
  double requests = 0;
  double kv = 0;
  std::uint32_t roomy = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const RankView& rank = ranks[i];
    if (out.scores[i] == kNotCandidate) continue;
    requests += static_cast<double>(rank.running + rank.waiting);
    kv += static_cast<double>(rank.kv_tokens);
    const double room = static_cast<double>(rank.kv_capacity) * (1 - options_.headroom);
    if (rank.kv_capacity == 0 || static_cast<double>(rank.kv_tokens) + brings <= room) ++roomy;
  }
  // The request itself counts into the means, so that empty ranks have one too.
  const double n_mean = (requests + 1) / out.candidates;
  const double k_mean = std::max((kv + brings) / out.candidates, 1.0);
  const double per_request = options_.request_weight / (n_mean * n_mean);
  const double per_kv = options_.kv_weight * brings / (k_mean * k_mean);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const RankView& rank = ranks[i];
    if (out.scores[i] == kNotCandidate) continue;
    const double n = static_cast<double>(rank.running + rank.waiting);
    const double k = static_cast<double>(rank.kv_tokens);
    out.scores[i] = per_request * (2 * n + 1) + per_kv * (2 * k + brings);
    // Headroom is kept while any rank has it; the pool's last part is better than no place.
    const double room = static_cast<double>(rank.kv_capacity) * (1 - options_.headroom);
    if (roomy > 0 && rank.kv_capacity > 0 && k + brings > room) {
      out.scores[i] = kNotCandidate;
      --out.candidates;
    }
  }
  choose_least(out, PlaceReason::kLevel, request.ties_from);
}

bool ReservedKv::reserve(RequestId request, RankId rank, std::int64_t tokens) {
  if (!by_request_.emplace(request, std::pair(rank, tokens)).second) return false;
  Held& held = by_rank_[rank];
  held.tokens += tokens;
  ++held.requests;
  return true;
}

std::int64_t ReservedKv::release(RequestId request) {
  const auto at = by_request_.find(request);
  if (at == by_request_.end()) return 0;
  const auto [rank, tokens] = at->second;
  by_request_.erase(at);
  const auto held = by_rank_.find(rank);
  held->second.tokens -= tokens;
  if (--held->second.requests == 0) by_rank_.erase(held);
  return tokens;
}

std::vector<RequestId> ReservedKv::drop_rank(RankId rank) {
  std::vector<RequestId> orphans;
  for (auto it = by_request_.begin(); it != by_request_.end();) {
    if (it->second.first == rank) {
      orphans.push_back(it->first);
      it = by_request_.erase(it);
    } else {
      ++it;
    }
  }
  by_rank_.erase(rank);
  return orphans;
}

std::int64_t ReservedKv::tokens(RankId rank) const {
  const auto at = by_rank_.find(rank);
  return at == by_rank_.end() ? 0 : at->second.tokens;
}

std::int64_t ReservedKv::requests(RankId rank) const {
  const auto at = by_rank_.find(rank);
  return at == by_rank_.end() ? 0 : at->second.requests;
}

void ReservedKv::count_in(RankView& rank) const {
  const auto at = by_rank_.find(rank.id);
  if (at == by_rank_.end()) return;
  rank.kv_tokens += at->second.tokens;
  rank.waiting += at->second.requests;
}

}  // namespace penstock::routing
