// EngineSet::pick(): which rank of which engine a request goes to, and why.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/hash.h"
#include "service/foreign/engine_set.h"

namespace penstock::foreign {
namespace {

using routing::RankView;

// What engines compute is not known here, so that all are taken alike: a prompt token not cached,
// and a request that runs or waits, in seconds. Only their proportion counts: 200 tokens are as
// much as a request.
constexpr double kTokenSeconds = 1e-4;
constexpr double kRequestSeconds = 0.02;
// Ranks within this much of the least cost may be chosen by the prompt's head.
constexpr double kNearlyFactor = 1.25;
constexpr double kNearlyRequests = 2;
// Of a hit token, by where it lies: what is not on the device has to come back to it.
constexpr double kHostHit = 0.75;
constexpr double kFarHit = 0.25;
constexpr std::int64_t kKvParts = 1'000'000;  // KV in use is told as a share

double credit(const kvcache::RankMatch& match) {
  return match.device + kHostHit * (match.host - match.device) +
         kFarHit * (match.any - std::max(match.host, match.device));
}

}  // namespace

struct EngineSet::Row {
  std::shared_ptr<Engine> engine;
  std::optional<std::uint32_t> rank;
  bool pinned = false;
  std::uint32_t predicted = 0;
  RankView view;

  std::string name() const {
    return pinned ? fmt::format("{}/{}", engine->config.name, *rank) : engine->config.name;
  }
};

bool EngineSet::usable(const Engine& engine, std::string_view model, dialects::WireApi api) const {
  const Instant now = clock_.now();
  return engine.healthy && !drains(engine) && engine.serves(model) &&
         dialects::speaks(engine.dialect(), api) && engine.breaker.allows(now) &&
         !engine.breaker.busy(now);
}

bool EngineSet::has_prefill(const Engine& decode, std::string_view model) const {
  return std::ranges::any_of(engines_, [&](const auto& engine) {
    return engine->pairs_with(decode) && usable(*engine, model, dialects::WireApi::kChat);
  });
}

std::vector<EngineSet::Row> EngineSet::rows(const Wanted& wanted) const {
  const PromptName* const prompt = prefixes_ != nullptr ? wanted.prompt : nullptr;
  const auto matches =
      prompt != nullptr ? prefixes_->match(*prompt) : std::vector<kvcache::RankMatch>();
  std::vector<Row> rows;
  const auto add = [&](const std::shared_ptr<Engine>& engine, std::optional<std::uint32_t> rank,
                       bool pinned) {
    Row row{engine, rank, pinned, 0, {}};
    RankView& view = row.view;
    view.id = {engine->config.id, rank.value_or(0)};
    view.running = std::llround(pinned ? engine->load(*rank) : engine->load());
    const double to_compute = rank ? static_cast<double>(engine->use[*rank].to_compute) : 0;
    view.outstanding_seconds =
        to_compute * kTokenSeconds + static_cast<double>(view.running) * kRequestSeconds;
    const auto load = std::ranges::find(engine->loads, view.id.rank, &dialects::RankLoad::rank);
    // Without a prompt to compute, the policy would have KV decide alone.
    if (prompt != nullptr && rank && load != engine->loads.end() && load->kv_used) {
      view.kv_capacity = kKvParts;
      view.kv_tokens = std::llround(std::clamp(*load->kv_used, 0.0, 1.0) * kKvParts);
    }
    if (prompt != nullptr) {
      const kvcache::RankOfWorker id{engine->config.id, view.id.rank};
      const auto match = std::ranges::find(matches, id, &kvcache::RankMatch::rank);
      if (rank && match != matches.end()) {
        row.predicted = match->any;
        const bool by_ids = prefixes_->has_events(id.worker) && !prompt->ids.empty();
        const double of = by_ids ? prompt->id_count : prompt->text_tokens;
        view.hit_tokens = std::llround(prefixes_->trust(id) * credit(*match) / std::max(of, 1.0) *
                                       prompt->tokens());
      }
      view.compute_seconds =
          std::max(0.0, static_cast<double>(prompt->tokens() - view.hit_tokens)) * kTokenSeconds;
    }
    rows.push_back(std::move(row));
  };
  for (const auto& engine : engines_) {
    const EngineRole role = engine->config.role;
    const bool fits =
        wanted.encode_for != nullptr
            ? role == EngineRole::kEncode && engine->config.kind == wanted.encode_for->config.kind
        : wanted.prefill_for != nullptr ? engine->pairs_with(*wanted.prefill_for)
                                        : role == EngineRole::kMixed || role == EngineRole::kDecode;
    if (!fits) continue;
    if (!usable(*engine, wanted.model, wanted.api) ||
        std::ranges::find(wanted.tried, engine->config.id) != wanted.tried.end())
      continue;
    // A decode engine whose prefill engines are all away, or of other versions, is none.
    if (engine->config.role == EngineRole::kDecode && dialects::splits(engine->pd(), wanted.api) &&
        !has_prefill(*engine, wanted.model))
      continue;
    if (!engine->pins(wanted.api)) {
      add(engine, engine->ranks == 1 ? std::optional(0U) : std::nullopt, false);
      continue;
    }
    for (std::uint32_t rank = 0; rank < engine->ranks; ++rank)
      add(engine, rank, true);
  }
  return rows;
}

Place EngineSet::pick(const Wanted& wanted, gateway::LegExplanation* told) const {
  const std::vector<Row> all = rows(wanted);
  if (all.empty()) return {};
  std::vector<RankView> views;
  bool hit = false;
  for (const Row& row : all) {
    views.push_back(row.view);
    hit = hit || row.view.hit_tokens > 0;
  }
  routing::Decision decision;
  Rng unused(0);
  policy_->place({}, views, unused, decision);
  const auto cost_of = [&](std::size_t i) {
    return views[i].outstanding_seconds + views[i].compute_seconds;
  };
  if (decision.choice && all.size() > 1) {
    const double least = *std::ranges::min_element(decision.scores);
    const double nearly = hit ? least + kRequestSeconds
                              : least + (kNearlyFactor - 1) * cost_of(*decision.choice) +
                                    kNearlyRequests * kRequestSeconds;
    const std::uint64_t head = checksum64(wanted.prompt_head);
    std::uint64_t best = 0;
    for (std::uint32_t i = 0; i < all.size(); ++i) {
      // A cache that has it is not left for the head's sake.
      if (decision.scores[i] > nearly || views[i].hit_tokens < views[*decision.choice].hit_tokens)
        continue;
      const std::uint64_t order = checksum64(fmt::format("{}\n{:016x}", all[i].name(), head));
      if (best != 0 && order <= best) continue;
      best = order;
      decision.choice = i;
    }
    if (views[*decision.choice].hit_tokens > 0) decision.reason = routing::PlaceReason::kPrefix;
  }
  if (told != nullptr) *told = explanation(all, decision);
  if (!decision.choice) return {};
  const Row& row = all[*decision.choice];
  return {row.engine, row.rank, row.pinned, row.predicted,
          static_cast<std::uint64_t>(row.view.compute_seconds / kTokenSeconds)};
}

gateway::LegExplanation EngineSet::explanation(const std::vector<Row>& all,
                                               const routing::Decision& decision) const {
  gateway::LegExplanation out;
  out.policy = policy_->name();
  out.reason = routing::to_string(decision.reason);
  out.ranks = static_cast<std::uint32_t>(all.size());
  out.candidates = decision.candidates;
  if (decision.choice) out.chosen = all[*decision.choice].name();
  std::vector<std::uint32_t> order(all.size());
  for (std::uint32_t i = 0; i < order.size(); ++i)
    order[i] = i;
  const std::size_t shown = std::min(order.size(), gateway::LegExplanation::kCandidatesShown);
  std::ranges::partial_sort(
      order, order.begin() + static_cast<std::ptrdiff_t>(shown), {},
      [&](std::uint32_t i) { return std::tuple(decision.choice != i, decision.scores[i], i); });
  for (std::size_t i = 0; i < shown; ++i) {
    const RankView& view = all[order[i]].view;
    gateway::CandidateExplanation& one = out.best.emplace_back();
    one.rank = all[order[i]].name();
    one.score = decision.scores[order[i]];
    one.requests = view.running;
    one.kv_tokens = view.kv_tokens;
    one.kv_capacity = view.kv_capacity;
    one.queue_seconds = view.outstanding_seconds;
    one.compute_seconds = view.compute_seconds;
  }
  return out;
}

}  // namespace penstock::foreign
