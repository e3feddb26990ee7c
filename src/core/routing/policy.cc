#include "core/routing/policy.h"

#include <algorithm>

#include <utility>

#include <fmt/format.h>

namespace penstock::routing {

std::string_view to_string(PlaceReason reason) {
  switch (reason) {
    case PlaceReason::kNoRanks:
      return "no ranks are known";
    case PlaceReason::kNoneAccepts:
      return "no rank accepts requests";
    case PlaceReason::kNoRoom:
      return "no rank has room for its KV now";
    case PlaceReason::kTooLarge:
      return "no rank could ever hold its KV";
    case PlaceReason::kOnlyCandidate:
      return "only candidate";
    case PlaceReason::kRandom:
      return "random";
    case PlaceReason::kNextInTurn:
      return "next in turn";
    case PlaceReason::kFewestRequests:
      return "fewest requests";
    case PlaceReason::kBetterOfTwo:
      return "better of two drawn";
    case PlaceReason::kSession:
      return "home of its session";
    case PlaceReason::kPrefix:
      return "longest prefix";
    case PlaceReason::kImbalance:
      return "affinity gave way to balance";
    case PlaceReason::kLowestCost:
      return "lowest cost";
    case PlaceReason::kTier:
      return "ready first in its tier";
    case PlaceReason::kCrossedTier:
      return "gains more outside its tier than it delays others";
    case PlaceReason::kLevel:
      return "keeps requests and KV level";
  }
  std::unreachable();
}

namespace {

PlaceReason why_none(const PlaceRequest& request, std::span<const RankView> ranks) {
  if (ranks.empty()) return PlaceReason::kNoRanks;
  bool accepts = false;
  for (const RankView& rank : ranks) {
    if (!rank.accepts) continue;
    accepts = true;
    if (rank.kv_capacity == 0 || kv_needed(request) <= rank.kv_capacity)
      return PlaceReason::kNoRoom;
  }
  return accepts ? PlaceReason::kTooLarge : PlaceReason::kNoneAccepts;
}

}  // namespace

bool open_decision(const PlaceRequest& request, std::span<const RankView> ranks, Decision& out) {
  out.choice.reset();
  out.scores.resize(ranks.size());
  std::uint32_t candidates = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const bool takes = can_take(ranks[i], request);
    out.scores[i] = takes ? 0 : kNotCandidate;
    candidates += takes ? 1 : 0;
  }
  out.candidates = candidates;
  if (candidates > 1) return true;
  if (candidates == 0) {
    out.reason = why_none(request, ranks);
    return false;
  }
  choose_least(out, PlaceReason::kOnlyCandidate);
  return false;
}

void choose_least(Decision& out, PlaceReason reason, std::size_t from) {
  double least = kNotCandidate;
  const auto look = [&](std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) {
      if (!(out.scores[i] < least)) continue;
      least = out.scores[i];
      out.choice = static_cast<std::uint32_t>(i);
    }
  };
  from = std::min(from, out.scores.size());
  look(from, out.scores.size());
  look(0, from);
  out.reason = reason;
}

std::string explain(const Decision& decision, std::span<const RankView> ranks,
                    std::string_view policy) {
  if (!decision.choice)
    return fmt::format("{}: none of {} ranks: {}", policy, ranks.size(),
                       to_string(decision.reason));
  const RankView& rank = ranks[*decision.choice];
  double next = kNotCandidate;
  for (std::size_t i = 0; i < decision.scores.size(); ++i)
    if (i != *decision.choice && decision.scores[i] < next) next = decision.scores[i];
  std::string text = fmt::format("{}: worker {} rank {} of {} candidates: {} (score {:.6g}", policy,
                                 rank.id.worker.value, rank.id.rank, decision.candidates,
                                 to_string(decision.reason), decision.scores[*decision.choice]);
  if (next < kNotCandidate) text += fmt::format("; best other {:.6g}", next);
  return text + ')';
}

}  // namespace penstock::routing
