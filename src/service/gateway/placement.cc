#include "service/gateway/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/routing/cost_model.h"
#include "core/routing/decode_balancer.h"
#include "core/routing/policies.h"

namespace penstock::gateway {
namespace {

using routing::to_seconds;

constexpr std::string_view kPrefillBalancer = "prefill-balancer";
constexpr std::string_view kDecodeBalancer = "decode-balancer";

const ModelDescription* find_model(const WorkerView& worker, std::string_view model) {
  const auto& models = worker.description.models;
  const auto served = std::ranges::find(models, model, &ModelDescription::name);
  return served == models.end() ? nullptr : &*served;
}

Status check_name(std::string_view name, const std::vector<std::string_view>& known,
                  std::string_view kind) {
  if (std::ranges::find(known, name) != known.end()) return {};
  return fail(ErrorCode::kInvalidArgument, fmt::format("unknown {} policy \"{}\"; there are: {}",
                                                       kind, name, fmt::join(known, ", ")));
}

std::vector<std::string_view> names_after(std::string_view first) {
  std::vector<std::string_view> names = {first};
  names.insert(names.end(), routing::policy_names().begin(), routing::policy_names().end());
  return names;
}

std::uint32_t fresh_tokens(const PlacementRequest& request) {
  return request.tokens - std::min(request.cached, request.tokens);
}

std::uint64_t kv_tokens(const PlacementRequest& request) {
  return request.tokens + std::uint64_t{request.output} * request.choices;
}

routing::PlaceRequest asked(const PlacementRequest& request) {
  return {.prompt_tokens = request.tokens,
          .output_tokens = static_cast<std::int64_t>(kv_tokens(request)) - request.tokens,
          .session = request.session};
}

// Seconds that the KV of a request's hit takes to a worker over a free link. Workers of one engine
// mostly stand together, so the last answer is kept.
class LoadTimes {
 public:
  LoadTimes(EngineCosts& costs, const PlacementRequest& request)
      : costs_(costs), request_(request) {}

  double to(const WorkerView& worker, std::uint32_t token_bytes) {
    if (request_.cached == 0) return 0;
    const std::string& engine = worker.description.engine;
    if (engine_ == nullptr || *engine_ != engine || token_bytes_ != token_bytes) {
      engine_ = &engine;
      token_bytes_ = token_bytes;
      seconds_ = predict(costs_.of(engine, request_.model));
    }
    return seconds_;
  }

 private:
  double predict(const routing::CostModels& costs) const {
    const std::uint32_t elsewhere =
        std::min(request_.cached, request_.cached_on_disk + request_.cached_remotely);
    double seconds = 0;
    for (const auto& [tokens, tier] : {std::pair(request_.cached - elsewhere, KvTier::kHost),
                                       std::pair(request_.cached_on_disk, KvTier::kDisk),
                                       std::pair(request_.cached_remotely, KvTier::kCluster)}) {
      const Duration load = costs.load(Bytes(std::int64_t{tokens} * token_bytes_), tier);
      // A profile may know nothing of a tier that is there.
      if (load != Duration::max()) seconds += to_seconds(load);
    }
    return seconds;
  }

  EngineCosts& costs_;
  const PlacementRequest& request_;
  const std::string* engine_ = nullptr;
  std::uint32_t token_bytes_ = 0;
  double seconds_ = 0;
};

}  // namespace

void PlacementRequest::set_cached(const KvIndexMatch& match) {
  const std::int64_t host = std::min(match.host, match.resumable).value;
  const std::int64_t disk = std::min(match.disk.value, match.resumable.value - host);
  cached = static_cast<std::uint32_t>(match.resumable.value);
  cached_on_disk = static_cast<std::uint32_t>(disk);
  cached_remotely = static_cast<std::uint32_t>(match.resumable.value - host - disk);
}

std::string Placer::rank_name(const WorkerView& worker, RankId rank) {
  return worker.loads.size() > 1 ? fmt::format("{}/{}", worker.description.name, rank.rank)
                                 : worker.description.name;
}

std::vector<std::string_view> prefill_policy_names() {
  return names_after(kPrefillBalancer);
}

std::vector<std::string_view> decode_policy_names() {
  return names_after(kDecodeBalancer);
}

Placer::Placer() = default;

Result<Placer> Placer::make(const PolicyNames& names) {
  TRY_STATUS(check_name(names.prefill, prefill_policy_names(), "prefill"));
  TRY_STATUS(check_name(names.decode, decode_policy_names(), "decode"));
  Placer placer;
  placer.names_ = names;
  return placer;
}

// The model's ranks as they are now. Names of models are the catalog's, so there are few.
Placer::Model& Placer::refresh(const PlacementState& state, std::string_view name) {
  auto known = models_.find(name);
  if (known == models_.end()) {
    known = models_.emplace(std::string(name), Model{}).first;
    Model& made = known->second;
    const auto alternative = [](const std::string& policy) {
      auto found = routing::make_policy(policy, {});
      ENSURE(found);
      return std::move(*found);
    };
    if (names_.prefill == kPrefillBalancer) {
      routing::PrefillBalancerOptions options;
      options.step_seconds = 0;  // ranks don't wait for each other's steps
      auto balancer = std::make_unique<routing::PrefillBalancer>(options);
      made.balancer = balancer.get();
      made.prefill = std::move(balancer);
    } else {
      made.prefill = alternative(names_.prefill);
    }
    made.decode = names_.decode == kDecodeBalancer
                      ? std::make_unique<routing::DecodeBalancer>(routing::DecodeBalancerOptions{})
                      : alternative(names_.decode);
  }
  workers_ = state.workers;
  costs_ = &state.costs;
  known->second.ranks.refresh(state.workers, state.ledger, state.costs, name);
  return known->second;
}

void Placer::predict_steps(EngineCosts& costs, const Model& model, std::string_view name) {
  const RankTable::Pool& pool = model.ranks.others();
  steps_.assign(pool.engines, 0);
  moe_.assign(pool.engines, 0);
  for (const RankTable::Block& block : pool.blocks) {
    const WorkerDescription& described = workers_[block.worker].description;
    const auto& known = costs.of(described.engine, name);
    const routing::StepCoefficients step = known.step_coefficients();
    for (std::uint32_t i = block.first; i < block.first + block.rows; ++i) {
      const routing::RankView& view = pool.views[i];
      double& moe = moe_[view.engine];
      if (moe == 0) moe = costs.decode_moe(described, known);
      if (view.running == 0) continue;
      double& slowest = steps_[view.engine];
      slowest =
          std::max(slowest, moe * routing::step_seconds(step, static_cast<double>(view.running),
                                                        static_cast<double>(view.kv_tokens)));
    }
  }
}

double Placer::step_with(EngineCosts& costs, const Model& model, std::uint32_t row,
                         const PlacementRequest& request) const {
  const RankTable::Pool& pool = model.ranks.others();
  const routing::RankView& view = pool.views[row];
  const WorkerView& worker = workers_[pool.rows[row].worker];
  const double own =
      moe_[view.engine] *
      routing::step_seconds(
          costs.of(worker.description.engine, request.model).step_coefficients(),
          static_cast<double>(view.running) + request.choices,
          static_cast<double>(view.kv_tokens) + static_cast<double>(kv_tokens(request)));
  return std::max(steps_[view.engine], own);
}

// An idle engine takes whatever comes.
bool Placer::fits_step(const PlacementState& state, const Model& model, std::uint32_t row,
                       const PlacementRequest& request) const {
  const Duration most = state.limits.step_time_max;
  return most <= Duration::zero() || steps_[model.ranks.others().views[row].engine] == 0 ||
         step_with(state.costs, model, row, request) <= to_seconds(most);
}

Placer::Candidate Placer::choose_decode(const PlacementState& state,
                                        const PlacementRequest& request) {
  RankTable::Pool& pool = model_->ranks.others();
  const double fresh = fresh_tokens(request);
  const bool alone = model_->ranks.prefill().rows.empty() || !state.limits.disaggregate;
  LoadTimes loads(state.costs, request);
  // A decode rank of a pair computes no prompt, so no time of it counts.
  const bool all_idle = !alone && !pool.mixed;
  for (const RankTable::Block& block : pool.blocks) {
    if (all_idle && !model_->decode_times) break;
    const bool computes = alone || block.mixed;
    const double load = computes ? loads.to(workers_[block.worker], block.kv_token_bytes) : 0;
    for (std::uint32_t i = block.first; i < block.first + block.rows; ++i) {
      const RankTable::Row& row = pool.rows[i];
      routing::RankView& view = pool.views[i];
      view.outstanding_seconds = computes ? row.queue_seconds : 0;
      view.hit_tokens = computes ? request.cached : 0;
      view.compute_seconds =
          computes ? routing::prefill_seconds(row.cost, fresh, request.cached) : 0;
      view.load_seconds = load;
    }
  }
  model_->decode_times = !all_idle;
  if (state.limits.step_time_max > Duration::zero()) {
    predict_steps(state.costs, *model_, request.model);
    bool any = false;
    for (std::uint32_t i = 0; i < pool.views.size(); ++i) {
      pool.views[i].accepts = fits_step(state, *model_, i, request);
      any = any || pool.views[i].accepts;
    }
    // It must go somewhere.
    for (routing::RankView& view : pool.views)
      view.accepts = view.accepts || !any;
  }
  others_.policy = model_->decode.get();
  const routing::PlaceRequest wanted = asked(request);
  model_->decode->place(wanted, pool.views, state.rng, others_.decision);
  if (!others_.decision.choice) {
    for (routing::RankView& view : pool.views) {
      view.kv_capacity = 0;
      view.accepts = true;
    }
    model_->decode->place(wanted, pool.views, state.rng, others_.decision);
    model_->ranks.forget();
  }
  return candidate(pool, *others_.decision.choice);
}

// The rank to compute the prompt for `decode`, or for itself; none when none has the same KV. Room
// is not looked at: prompts wait in their rank's queue, which its quota says.
std::optional<Placer::Candidate> Placer::choose_prefill(const PlacementState& state,
                                                        const PlacementRequest& request,
                                                        const Candidate* decode) {
  RankTable::Pool& pool = model_->ranks.prefill();
  const double fresh = fresh_tokens(request);
  const RankTable::Block* const to =
      decode == nullptr ? nullptr : &model_->ranks.others().block_of(*others_.decision.choice);
  LoadTimes loads(state.costs, request);
  for (const RankTable::Block& from : pool.blocks) {
    const bool accepts =
        to == nullptr || (from.kv_kind != RankTable::kNoWay && from.kv_kind == to->kv_kind);
    const bool near = to == nullptr || from.zone == to->zone;
    const double transfer =
        to == nullptr ? 0
                      : double{1} * request.tokens * from.kv_token_bytes /
                            (near ? state.limits.bandwidth_near : state.limits.bandwidth_far);
    const double load = loads.to(workers_[from.worker], from.kv_token_bytes);
    for (std::uint32_t i = from.first; i < from.first + from.rows; ++i) {
      const RankTable::Row& row = pool.rows[i];
      routing::RankView& view = pool.views[i];
      view.accepts = accepts;
      view.outstanding_seconds = row.queue_seconds;
      view.hit_tokens = request.cached;
      view.compute_seconds = routing::prefill_seconds(row.cost, fresh, request.cached);
      view.load_seconds = load;
      view.transfer_seconds = transfer;
    }
  }
  if (model_->balancer != nullptr) model_->balancer->advance(state.now, pool.engines);
  routing::PlaceRequest wanted = asked(request);
  wanted.output_tokens = 0;
  model_->prefill->place(wanted, pool.views, state.rng, prefill_.decision);
  prefill_.policy = model_->prefill.get();
  const auto& choice = prefill_.decision.choice;
  return choice ? std::optional(candidate(pool, *choice)) : std::nullopt;
}

Placer::Candidate Placer::candidate(const RankTable::Pool& pool, std::uint32_t row) const {
  return {&pool.rows[row], &pool.views[row], &workers_[pool.rows[row].worker]};
}

std::string Placer::why(const Asked& asked) const {
  return fmt::format("{}: {} (of {})", asked.policy->name(),
                     routing::to_string(asked.decision.reason), asked.decision.candidates);
}

Result<Placement> Placer::place(const PlacementState& state, const PlacementRequest& request) {
  request_ = request;
  prefill_.policy = others_.policy = nullptr;
  model_ = &refresh(state, request.model);
  auto placed = decide(state, request);
  if (placed) reason_ = placed->reason;
  return placed;
}

Result<Placement> Placer::decide(const PlacementState& state, const PlacementRequest& request) {
  const std::uint32_t fresh = fresh_tokens(request);
  const PlacementLimits& limits = state.limits;
  const bool no_prefill = model_->ranks.prefill().rows.empty();
  const bool no_others = model_->ranks.others().rows.empty();
  if (no_prefill && no_others) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("no worker can take a request for the model '{}' right now (known: {}, "
                            "draining: {}); try again shortly",
                            request.model, state.workers.size(), model_->ranks.draining()));
  }
  Placement out;
  out.fresh = fresh;
  out.kv_tokens = kv_tokens(request);
  const auto compute = [&](const Candidate& c) {
    return routing::prefill_seconds(c.row->cost, fresh, request.cached);
  };
  const auto on = [&](const Candidate& c) {
    out.decode = c.row->id;
    out.model = c.model();
    out.compute = routing::to_duration(compute(c));
    out.load = routing::to_duration(c.view->load_seconds);
  };
  if (no_others) {
    const auto whole = choose_prefill(state, request, nullptr);
    ENSURE(whole);
    on(*whole);
    out.reason = fmt::format("{}: no decode worker is there; {}", whole->name(), why(prefill_));
    return out;
  }
  const Candidate decode = choose_decode(state, request);
  on(decode);
  const auto alone = [&](std::string_view note) {
    out.reason = fmt::format("{}: {} requests there; {}{}", decode.name(), decode.view->running,
                             why(others_), note);
    return out;
  };
  if (decode.role() == WorkerRole::kMixed || !limits.disaggregate) return alone("");
  if (no_prefill) return alone("; no prefill worker is there");
  const auto prefill = choose_prefill(state, request, &decode);
  if (!prefill) return alone("; no prefill worker has the same KV");

  // The transfer goes on while the prompt is computed: the longer of the two counts.
  const routing::RankView& view = *prefill->view;
  const double pool = routing::ready_seconds(view, 0) + to_seconds(limits.handoff_base);
  const double load =
      LoadTimes(state.costs, request).to(*decode.worker, decode.model().kv_token_bytes);
  const double local = std::max(decode.row->queue_seconds,
                                load > 0 ? decode.view->load_outstanding_seconds + load : 0) +
                       compute(decode);
  // To it and to those it holds up.
  const double delay = local * (1.0 + model_->ranks.others().running_with(*decode.view));
  if (local <= to_seconds(limits.local_prefill_max) && delay < pool) {
    out.load = routing::to_duration(load);
    out.reason =
        fmt::format("{}: its prompt too, {} tokens in {:.1f} ms; by {} it would be {:.1f} ms; {}",
                    decode.name(), fresh, local * 1e3, prefill->name(), pool * 1e3, why(others_));
    return out;
  }
  out.prefill = prefill->row->id;
  out.transport = prefill->worker->description.transport;
  out.epoch = prefill->worker->description.epoch;
  out.prompt_kv_tokens = request.tokens;
  out.compute = routing::to_duration(view.compute_seconds);
  out.load = routing::to_duration(view.load_seconds);
  out.reason = fmt::format(
      "{} for {}: {} tokens in {:.1f} ms, {:.1f} ms of them waiting; {} "
      "requests decode there; {}; {}",
      prefill->name(), decode.name(), fresh, pool * 1e3, view.outstanding_seconds * 1e3,
      decode.view->running, why(prefill_), why(others_));
  return out;
}

// Mostly the first ranks have room, and the rest need not be looked at.
bool Placer::has_room(const PlacementState& state, const PlacementRequest& request) {
  const auto needed = static_cast<std::int64_t>(kv_tokens(request));
  const double backlog = to_seconds(state.limits.prefill_backlog);
  const Model& model = refresh(state, request.model);
  const RankTable& ranks = model.ranks;
  const RankTable::Pool& others = ranks.others();
  const bool pairs = state.limits.disaggregate && !ranks.prefill().rows.empty();
  const RankTable::Pool& computing = pairs ? ranks.prefill() : others;
  if (state.limits.step_time_max > Duration::zero())
    predict_steps(state.costs, model, request.model);
  const auto holds = [&](const routing::RankView& view) {
    const auto row = static_cast<std::uint32_t>(&view - others.views.data());
    return (view.kv_capacity == 0 || view.kv_tokens + needed <= view.kv_capacity) &&
           fits_step(state, model, row, request);
  };
  // A hit waits for the link too.
  const auto begins = [&](const routing::RankView& view) {
    const auto row = static_cast<std::size_t>(&view - computing.views.data());
    return computing.rows[row].queue_seconds <= backlog &&
           (request.cached == 0 || view.load_outstanding_seconds <= backlog);
  };
  return (others.rows.empty() || std::ranges::any_of(others.views, holds)) &&
         (computing.rows.empty() || std::ranges::any_of(computing.views, begins));
}

Placer::Work Placer::work(const PlacementState& state, const PlacementRequest& request) {
  const RankTable& ranks = refresh(state, request.model).ranks;
  const bool pairs = state.limits.disaggregate && !ranks.prefill().rows.empty();
  const RankTable::Pool& computing = pairs ? ranks.prefill() : ranks.others();
  Work out;
  if (computing.rows.empty()) return out;
  const RankTable::Row& first = computing.rows.front();
  const auto& costs = state.costs.of(workers_[first.worker].description.engine, request.model);
  const auto step = costs.step_coefficients();
  const double output = double{1} * request.output * request.choices;
  out.ranks = static_cast<double>(computing.rows.size());
  out.prompt = routing::prefill_seconds(first.cost, fresh_tokens(request), request.cached);
  out.cold_prompt = routing::prefill_seconds(first.cost, request.tokens, 0);
  out.total =
      out.prompt + output * (step.per_request + step.per_kv_token * (request.tokens + output / 2));
  return out;
}

const ModelDescription* served_model(std::span<const WorkerView> workers, std::string_view model) {
  for (const WorkerView& worker : workers) {
    if (!worker.connected || worker.draining) continue;
    const ModelDescription* const served = find_model(worker, model);
    if (served == nullptr) continue;
    const auto index = static_cast<std::uint32_t>(served - worker.description.models.data());
    if (std::ranges::find(worker.loads, index, &EngineLoad::model) != worker.loads.end())
      return served;
  }
  return nullptr;
}

bool is_served(std::span<const WorkerView> workers, std::string_view model) {
  return served_model(workers, model) != nullptr;
}

std::optional<std::uint32_t> context_length(std::span<const WorkerView> workers,
                                            std::string_view model) {
  for (const WorkerView& worker : workers) {
    if (const ModelDescription* const served = find_model(worker, model)) {
      return served->context_length;
    }
  }
  return std::nullopt;
}

}  // namespace penstock::gateway
