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

bool fits(const ModelDescription& prefill, const WorkerView& from, const ModelDescription& decode,
          const WorkerView& to) {
  return prefill.kv == decode.kv && !from.description.transport.empty() &&
         !to.description.transport.empty();
}

double transfer_seconds(const WorkerView& from, const WorkerView& to, double bytes,
                        const PlacementLimits& limits) {
  const bool near = from.description.zone == to.description.zone;
  return bytes / (near ? limits.bandwidth_near : limits.bandwidth_far);
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

}  // namespace

std::uint32_t Placer::Candidate::requests() const {
  return std::max(load->running + load->waiting, own.requests);
}

// What is reported and what is promised overlap, so the larger one counts.
std::int64_t Placer::Candidate::kv_tokens() const {
  return std::max(load->kv_tokens_used.value, static_cast<std::int64_t>(own.kv_tokens));
}

double Placer::Candidate::prefill_seconds(double context, double fresh) const {
  return routing::prefill_seconds(cost, fresh, context);
}

std::string Placer::Candidate::name() const {
  return worker->loads.size() > 1 ? fmt::format("{}/{}", worker->description.name, id.rank)
                                  : worker->description.name;
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

// Names of models are the catalog's, so there are few.
Placer::Policies& Placer::policies(std::string_view model) {
  if (const auto known = policies_.find(model); known != policies_.end()) return known->second;
  const auto alternative = [](const std::string& name) {
    auto made = routing::make_policy(name, {});
    ENSURE(made);
    return std::move(*made);
  };
  Policies made;
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
  return policies_.emplace(std::string(model), std::move(made)).first->second;
}

// Calls visit(candidate) for the ranks that could run the request now, until it returns false.
template <typename Visit>
void Placer::visit_candidates(const PlacementState& state, std::string_view model, Visit visit) {
  draining_ = 0;
  Candidate c;
  for (const WorkerView& worker : state.workers) {
    if (!worker.connected) continue;
    const ModelDescription* const served = find_model(worker, model);
    if (served == nullptr) continue;
    if (worker.draining) {
      ++draining_;
      continue;
    }
    const auto index = static_cast<std::uint32_t>(served - worker.description.models.data());
    auto own = state.ledger.of_worker(worker.description.id);
    std::optional<PrefillCoefficients> usual;
    for (std::uint32_t rank = 0; rank < worker.loads.size(); ++rank) {
      const EngineLoad& load = worker.loads[rank];
      while (!own.empty() && own.front().first.rank < rank)
        own = own.subspan(1);
      if (load.model != index) continue;
      c.worker = &worker;
      c.model = served;
      c.load = &load;
      c.id = {worker.description.id, rank};
      c.own =
          !own.empty() && own.front().first.rank == rank ? own.front().second : RankLedger::Entry{};
      c.cost = load.prefill;
      if (c.cost == PrefillCoefficients{}) {
        if (!usual) usual = state.costs.of(worker.description.engine, model).prefill_coefficients();
        c.cost = *usual;
      }
      // What this shard has placed is known in time; what others have, in tokens only.
      const double others = static_cast<double>(load.prompt_tokens_waiting) -
                            static_cast<double>(c.own.prompt_tokens);
      c.queue_seconds = to_seconds(c.own.prompt_time) + c.prefill_seconds(0, others);
      if (!visit(c)) return;
    }
  }
}

// Fills both pools.
void Placer::gather(const PlacementState& state, std::string_view model) {
  for (Pool* const pool : {&prefill_, &others_}) {
    pool->ranks.clear();
    pool->views.clear();
    pool->policy = nullptr;
  }
  visit_candidates(state, model, [this](const Candidate& c) {
    (c.role() == WorkerRole::kPrefill ? prefill_ : others_).ranks.push_back(c);
    return true;
  });
}

const Placer::Candidate& Placer::choose_decode(const PlacementState& state,
                                               const PlacementRequest& request) {
  const double fresh = fresh_tokens(request);
  const bool alone = prefill_.ranks.empty() || !state.limits.disaggregate;
  for (std::uint32_t i = 0; i < others_.ranks.size(); ++i) {
    const Candidate& c = others_.ranks[i];
    routing::RankView& view = others_.views.emplace_back();
    view.id = c.id;
    view.engine = i;
    view.running = c.requests();
    view.kv_tokens = c.kv_tokens();
    // A rank without requests has all its room, whatever was last heard of it: what is too large
    // for it the engine itself must say.
    view.kv_capacity = view.running == 0 ? 0 : c.load->kv_tokens_total.value;
    if (!alone && c.role() != WorkerRole::kMixed) continue;
    view.outstanding_seconds = c.queue_seconds;
    view.hit_tokens = request.cached;
    view.compute_seconds = c.prefill_seconds(request.cached, fresh);
  }
  routing::PlacementPolicy& policy = *policies(request.model).decode;
  others_.policy = &policy;
  const routing::PlaceRequest wanted = asked(request);
  policy.place(wanted, others_.views, state.rng, others_.decision);
  if (!others_.decision.choice) {
    for (routing::RankView& view : others_.views)
      view.kv_capacity = 0;
    policy.place(wanted, others_.views, state.rng, others_.decision);
  }
  return others_.ranks[*others_.decision.choice];
}

// The rank to compute the prompt for `decode`, or for itself; null when none has the same KV. Room
// is not looked at: prompts wait in their rank's queue, which its quota says.
const Placer::Candidate* Placer::choose_prefill(const PlacementState& state,
                                                const PlacementRequest& request,
                                                const Candidate* decode) {
  const double fresh = fresh_tokens(request);
  const WorkerView* worker = nullptr;
  bool accepts = true;
  double transfer = 0;
  for (std::uint32_t i = 0; i < prefill_.ranks.size(); ++i) {
    const Candidate& c = prefill_.ranks[i];
    if (decode != nullptr && c.worker != worker) {
      worker = c.worker;
      accepts = fits(*c.model, *worker, *decode->model, *decode->worker);
      transfer =
          transfer_seconds(*worker, *decode->worker,
                           double{1} * request.tokens * c.model->kv_token_bytes, state.limits);
    }
    routing::RankView& view = prefill_.views.emplace_back();
    view.id = c.id;
    view.engine = i;
    view.accepts = accepts;
    view.running = c.requests();
    view.kv_tokens = c.kv_tokens();
    view.outstanding_seconds = c.queue_seconds;
    view.hit_tokens = request.cached;
    view.compute_seconds = c.prefill_seconds(request.cached, fresh);
    view.transfer_seconds = transfer;
  }
  Policies& policies_of_model = policies(request.model);
  if (policies_of_model.balancer != nullptr)
    policies_of_model.balancer->advance(state.now, prefill_.ranks.size());
  routing::PlaceRequest wanted = asked(request);
  wanted.output_tokens = 0;
  policies_of_model.prefill->place(wanted, prefill_.views, state.rng, prefill_.decision);
  prefill_.policy = policies_of_model.prefill.get();
  const auto& choice = prefill_.decision.choice;
  return choice ? &prefill_.ranks[*choice] : nullptr;
}

std::string Placer::why(const Pool& pool) const {
  return fmt::format("{}: {} (of {})", pool.policy->name(),
                     routing::to_string(pool.decision.reason), pool.decision.candidates);
}

Result<Placement> Placer::place(const PlacementState& state, const PlacementRequest& request) {
  request_ = request;
  gather(state, request.model);
  auto placed = decide(state, request);
  if (placed) reason_ = placed->reason;
  return placed;
}

Result<Placement> Placer::decide(const PlacementState& state, const PlacementRequest& request) {
  const std::uint32_t fresh = fresh_tokens(request);
  const PlacementLimits& limits = state.limits;
  if (prefill_.ranks.empty() && others_.ranks.empty()) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("no worker can take a request for the model '{}' right now (known: {}, "
                            "draining: {}); try again shortly",
                            request.model, state.workers.size(), draining_));
  }
  Placement out;
  out.fresh = fresh;
  out.kv_tokens = kv_tokens(request);
  const auto on = [&](const Candidate& c) {
    out.decode = c.id;
    out.model = *c.model;
    out.compute = routing::to_duration(c.prefill_seconds(request.cached, fresh));
  };
  if (others_.ranks.empty()) {
    const Candidate* const whole = choose_prefill(state, request, nullptr);
    ENSURE(whole != nullptr);
    on(*whole);
    out.reason = fmt::format("{}: no decode worker is there; {}", whole->name(), why(prefill_));
    return out;
  }
  const Candidate& decode = choose_decode(state, request);
  on(decode);
  const auto alone = [&](std::string_view note) {
    out.reason = fmt::format("{}: {} requests there; {}{}", decode.name(), decode.requests(),
                             why(others_), note);
    return out;
  };
  if (decode.role() == WorkerRole::kMixed || !limits.disaggregate) return alone("");
  if (prefill_.ranks.empty()) return alone("; no prefill worker is there");
  const Candidate* const prefill = choose_prefill(state, request, &decode);
  if (prefill == nullptr) return alone("; no prefill worker has the same KV");

  // The transfer goes on while the prompt is computed: the longer of the two counts.
  const routing::RankView& view = prefill_.views[*prefill_.decision.choice];
  const double pool = prefill->queue_seconds +
                      std::max(view.compute_seconds, view.transfer_seconds) +
                      to_seconds(limits.handoff_base);
  const double local = decode.queue_seconds + decode.prefill_seconds(request.cached, fresh);
  const double delay = local * (1.0 + decode.load->running);  // to it and to those it holds up
  if (local <= to_seconds(limits.local_prefill_max) && delay < pool) {
    out.reason =
        fmt::format("{}: its prompt too, {} tokens in {:.1f} ms; by {} it would be {:.1f} ms; {}",
                    decode.name(), fresh, local * 1e3, prefill->name(), pool * 1e3, why(others_));
    return out;
  }
  out.prefill = prefill->id;
  out.transport = prefill->worker->description.transport;
  out.epoch = prefill->worker->description.epoch;
  out.prompt_kv_tokens = request.tokens;
  out.compute = routing::to_duration(view.compute_seconds);
  out.reason = fmt::format(
      "{} for {}: {} tokens in {:.1f} ms, {:.1f} ms of them waiting; {} "
      "requests decode there; {}; {}",
      prefill->name(), decode.name(), fresh, pool * 1e3, prefill->queue_seconds * 1e3,
      decode.requests(), why(prefill_), why(others_));
  return out;
}

bool Placer::has_room(const PlacementState& state, const PlacementRequest& request) {
  const auto needed = static_cast<std::int64_t>(kv_tokens(request));
  const double backlog = to_seconds(state.limits.prefill_backlog);
  struct Seen {
    bool any = false;
    bool holds = false;   // one has room for its KV
    bool begins = false;  // one would begin with its prompt soon
  };
  Seen prefill;
  Seen others;
  // Mostly the first ranks have room, and the rest need not be looked at.
  visit_candidates(state, request.model, [&](const Candidate& c) {
    Seen& kind = c.role() == WorkerRole::kPrefill ? prefill : others;
    const std::int64_t capacity = c.load->kv_tokens_total.value;
    kind.any = true;
    kind.begins = kind.begins || c.queue_seconds <= backlog;
    kind.holds =
        kind.holds || c.requests() == 0 || capacity == 0 || c.kv_tokens() + needed <= capacity;
    return !others.holds || !(state.limits.disaggregate ? prefill : others).begins;
  });
  const Seen& computing = prefill.any && state.limits.disaggregate ? prefill : others;
  return (!others.any || others.holds) && (!computing.any || computing.begins);
}

double Placer::work_seconds(const PlacementState& state, const PlacementRequest& request) {
  for (const WorkerView& worker : state.workers) {
    if (find_model(worker, request.model) == nullptr) continue;
    const routing::CostModels& costs = state.costs.of(worker.description.engine, request.model);
    const double output = double{1} * request.output * request.choices;
    const auto step = costs.step_coefficients();
    return to_seconds(costs.prefill(Tokens(fresh_tokens(request)), Tokens(request.cached))) +
           output * (step.per_request + step.per_kv_token * (request.tokens + output / 2));
  }
  return 0;
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
