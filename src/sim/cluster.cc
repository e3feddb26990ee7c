#include "sim/cluster.h"

#include <algorithm>
#include <cmath>

#include "sim/cluster_run.h"

namespace penstock::sim {
namespace {

using routing::Profile;
using routing::RankView;

constexpr std::uint32_t kProgressEvery = 8192;  // arrivals
// Steps are longer than their nominal compute by moe_lb and by waiting for the slowest rank.
constexpr double kComputeMargin = 1.1;

}  // namespace

std::array<CacheTier, kCacheTiers.size()> cache_tiers(const ClusterOptions& options,
                                                      Instant last_arrival) {
  // Nobody looks for a block more than a day after the last arrival: a longer TTL is none.
  const Duration run = last_arrival - Instant{} + std::chrono::hours(24);
  const CacheTier main{options.cache_blocks == 0 ? kUnlimitedBlocks : options.cache_blocks,
                       options.cache_ttl > run ? Duration::max() : options.cache_ttl};
  if (options.cache_scope == CacheScope::kEngine) return {main, options.disk, CacheTier{}};
  return {options.host, options.disk, main};
}

Cluster::Cluster(const Profile& profile, const evaluate::Trace& trace,
                 const std::vector<evaluate::Arrival>& arrivals, const ClusterOptions& options,
                 std::unique_ptr<routing::PlacementPolicy> prefill_policy,
                 std::unique_ptr<routing::PlacementPolicy> decode_policy,
                 routing::PrefillBalancer* balancer)
    : profile_(profile),
      trace_(trace),
      arrivals_(arrivals),
      options_(options),
      prefill_policy_(std::move(prefill_policy)),
      decode_policy_(std::move(decode_policy)),
      balancer_(balancer),
      prefill_ranks_(static_cast<std::size_t>(profile.prefill_pool.ranks)),
      prefill_group_(static_cast<std::size_t>(profile.prefill_pool.group_ranks)),
      decode_group_(static_cast<std::size_t>(profile.decode_pool.group_ranks)),
      placement_rng_(options.seed * 4 + 1),
      loss_rng_(options.seed * 4 + 2),
      blocks_in_(trace),
      caches_(cache_tiers(options, Instant{} + std::chrono::microseconds(arrivals.back().at_us)),
              static_cast<std::size_t>(profile.prefill_pool.ranks) / prefill_group_),
      prefill_reports_(
          options.gateways,
          static_cast<std::size_t>(profile.prefill_pool.ranks +
                                   (options.prefill_on_decode ? profile.decode_pool.ranks : 0)),
          options.front.order.useful_share),
      decode_reports_(options.gateways, static_cast<std::size_t>(profile.decode_pool.ranks), 0),
      loads_(profile, trace.block_tokens, options.zones, options.loads_through_decode,
             decode_accepts_) {
  const auto number = [](RequestId id) { return static_cast<std::uint32_t>(id.value); };
  prefill_events_ = {
      .started = [this, number](RequestId id) { start_decode_place(number(id)); },
      .done = [this, number](RequestId id, std::int64_t last) { computed(number(id), last); },
      .stepped = [this](std::size_t engine) { report_prefill(engine); }};
  if (options.clairvoyant)
    prefill_events_.pull = [this](std::size_t engine, std::size_t rank,
                                  routing::QueuedPrompt& out) {
      if (!pull(engine, out)) return false;
      requests_[out.id.value].prefill_rank =
          static_cast<std::uint32_t>(engine * prefill_group_ + rank);
      return true;
    };
  decode_events_ = {
      .finished = [this, number](RequestId id) { finished(number(id)); },
      .stepped = [this](std::size_t engine, double seconds,
                        std::int64_t tokens) { decode_stepped(engine, seconds, tokens); },
      .joined = [this, number](RequestId id) { joined_.push_back(number(id)); },
      .preempted =
          [this, number](RequestId id) {
            requests_[number(id)].last_token = queue_.now();
            requests_[number(id)].waits = true;
          },
      .prompt_done = [this, number](RequestId id,
                                    std::int64_t last) { computed(number(id), last); }};
  const auto decode_ranks = static_cast<std::size_t>(profile.decode_pool.ranks);
  const std::size_t prefill_engines = prefill_ranks_ / prefill_group_;
  const std::size_t decode_engines = decode_ranks / decode_group_;
  for (std::size_t e = 0; e < prefill_engines; ++e)
    prefill_.emplace_back(queue_, profile, e, prefill_group_, options.seed * 1000 + e,
                          prefill_events_);
  for (std::size_t e = 0; e < decode_engines; ++e)
    decode_.emplace_back(queue_, profile, e, decode_group_, options.seed * 1000 + 500 + e,
                         decode_events_,
                         options.prefill_on_decode ? options.decode_step_seconds : 0);
  prefill_accepts_.assign(prefill_engines, true);
  prefill_up_.assign(prefill_engines, true);
  decode_accepts_.assign(decode_engines, true);
  decode_up_.assign(decode_engines, true);
  if (options.event_lag > Duration::zero() || options.event_loss > 0) believed_ = caches_;
  if (options.front.on || options.clairvoyant)
    front_.assign(options.clairvoyant ? 1 : options.gateways,
                  FrontLine(options.front.order, !options.clairvoyant && !options.tenants.empty()));
  double shares = 0;
  for (const TenantShare& tenant : options.tenants) {
    report_.tenants.emplace_back().name = tenant.name;
    tenant_ends_.push_back(shares += tenant.share);
  }
  for (double& end : tenant_ends_)
    end /= shares;
  prefill_views_.resize(prefill_ranks_);
  for (std::size_t r = 0; r < prefill_ranks_; ++r) {
    const std::size_t engine = r / prefill_group_;
    prefill_views_[r].id = {WorkerId(engine), static_cast<std::uint32_t>(r % prefill_group_)};
    prefill_views_[r].engine = static_cast<std::uint32_t>(engine);
    prefill_views_[r].zone = static_cast<std::uint16_t>(engine % options.zones);
  }
  decode_views_.resize(decode_ranks);
  for (std::size_t r = 0; r < decode_ranks; ++r) {
    const std::size_t engine = r / decode_group_;
    decode_views_[r].id = {WorkerId(1'000'000 + engine),
                           static_cast<std::uint32_t>(r % decode_group_)};
    decode_views_[r].engine = static_cast<std::uint32_t>(engine);
    decode_views_[r].zone = static_cast<std::uint16_t>(engine % options.zones);
    decode_views_[r].kv_capacity = profile.decode_pool.kv_tokens;
  }
  if (options.prefill_on_decode) make_local_views();
  loading_seconds_.resize(prefill_views_.size());
  loading_requests_.resize(prefill_views_.size());
  on_way_.resize(decode_ranks);
  requests_.resize(arrivals.size());
  std::uint64_t count = 0;
  for (std::uint32_t i = 0; i < arrivals.size(); ++i)
    count += measured(i) ? 1 : 0;
  missed_max_ = options.stop_early
                    ? static_cast<std::uint64_t>(options.slo.missed_share *
                                                 static_cast<double>(count) * (1 + 1e-9))
                    : std::numeric_limits<std::uint64_t>::max();
}

// Whole conversations, told by the first block that is not everybody's, as in evaluate::scale().
std::uint32_t Cluster::tenant_of(const evaluate::Arrival& arrival) const {
  constexpr std::uint32_t kOtherDraw = 2'000'000;
  const auto blocks = trace_.blocks_of(trace_.requests[arrival.request]);
  const std::uint64_t conversation = blocks.size() > 1 ? blocks[1] : arrival.request;
  const double draw =
      static_cast<double>(evaluate::block_in_copy(conversation, arrival.copy + kOtherDraw) >> 11) *
      0x1p-53;
  const auto at = std::ranges::upper_bound(tenant_ends_, draw) - tenant_ends_.begin();
  return static_cast<std::uint32_t>(
      std::min(static_cast<std::size_t>(at), tenant_ends_.size() - 1));
}

Result<Report> Cluster::run() {
  report_.prefill_policy = options_.clairvoyant ? "clairvoyant" : prefill_policy_->name();
  report_.decode_policy = decode_policy_->name();
  report_.slo = options_.slo;
  const Instant last = Instant{} + std::chrono::microseconds(arrivals_.back().at_us);
  if (last <= Instant{} + options_.warmup)
    return fail(ErrorCode::kInvalidArgument,
                "simulate: the load ends before the warm-up does; make it longer");
  report_.measured_seconds = routing::to_seconds(last - options_.warmup - Instant{});
  TRY_STATUS(plan_changes());
  next_arrival();
  start_heartbeats();
  for (Instant t = Instant{} + options_.warmup; t <= last; t += std::chrono::seconds(1))
    queue_.call_at(t, [this] { sample(); });
  if (!queue_.run_until(last, options_.events_max) && !report_.stopped_early)
    return fail(ErrorCode::kInternal, "simulate: too many events");
  // What is measured is the steady state up to the last arrival, and then the fate of those that
  // had arrived; what decodes on after them is not counted among the gaps.
  count_open_gaps();
  const Histogram gaps = report_.gaps;
  const std::uint64_t slow_gaps = report_.slow_gaps;
  const double output_tokens = report_.output_tokens;
  double busy = 0;
  for (const PrefillEngine& engine : prefill_)
    busy += engine.busy_seconds();
  if (!report_.stopped_early && !queue_.run(options_.events_max) && !report_.stopped_early)
    return fail(ErrorCode::kInternal, "simulate: too many events");
  for (std::uint32_t id = 0; id < requests_.size(); ++id)
    if (!requests_[id].finished && measured(id)) ++report_.unfinished;
  report_.unfinished -= report_.refused;
  report_.gaps = gaps;
  report_.slow_gaps = slow_gaps;
  report_.output_tokens = output_tokens;
  report_.prefill_busy =
      busy / routing::to_seconds(last - Instant{}) / static_cast<double>(prefill_.size());
  for (const DecodeEngine& engine : decode_)
    report_.preemptions += engine.preemptions();
  report_.events = queue_.events();
  report_.digest = digest_.value();
  return std::move(report_);
}

void Cluster::next_arrival() {
  if (next_ >= arrivals_.size()) return;
  const std::uint32_t index = next_++;
  if (options_.progress && index % kProgressEvery == 0)
    options_.progress(static_cast<double>(index) / static_cast<double>(arrivals_.size()));
  queue_.call_at(Instant{} + std::chrono::microseconds(arrivals_[index].at_us), [this, index] {
    arrive(index);
    next_arrival();
  });
}

void Cluster::arrive(std::uint32_t index) {
  RequestState& request = requests_[index];
  request.arrival = index;
  request.gateway = static_cast<std::uint32_t>(index % options_.gateways);
  if (!tenant_ends_.empty()) request.tenant = tenant_of(arrivals_[index]);
  if (measured(index)) {
    ++report_.arrivals;
    if (!report_.tenants.empty()) ++report_.tenants[request.tenant].arrivals;
    report_.prompt_tokens += static_cast<double>(trace_of(request).prompt_tokens);
  }
  if (balancer_ != nullptr) balancer_->advance(queue_.now(), prefill_.size());
  queue_or_place(index);
}

void Cluster::queue_or_place(std::uint32_t id) {
  RequestState& request = requests_[id];
  if (front_.empty()) {
    if (!place_prefill(id)) refuse(id);
    return;
  }
  blocks_in_.of(arrivals_[id], blocks_);
  const std::int64_t prompt = prompt_of(request);
  std::int64_t hit = 0;
  for (std::size_t view = 0; view < caches_.views(); ++view)
    hit = std::max(hit, usable(believed().peek(view, blocks_, queue_.now()).total(), prompt));
  request.quota = routing::prefill_seconds(
      profile_.costs.prefill, static_cast<double>(prompt - hit), static_cast<double>(hit));
  if (options_.refuse_work > 0 && request.quota >= options_.refuse_work) {
    refuse(id);
    return;
  }
  const double limit = options_.slo.first_token_limit(
      profile_.costs.prefill, static_cast<double>(trace_of(request).prompt_tokens));
  const double wait = options_.front.margin_steps * profile_.chunk_budget_seconds;
  const Instant arrived = Instant{} + std::chrono::microseconds(arrivals_[request.arrival].at_us);
  routing::WaitingPrompt waiting{RequestId(id), arrived, queue_.now(), request.quota};
  if (!request.has_first_token)
    waiting.latest_start = arrived + routing::to_duration(limit) -
                           routing::to_duration(kComputeMargin * request.quota + wait);
  const std::size_t gateway = options_.clairvoyant ? 0 : request.gateway;
  static const TenantShare kOnly{};
  front_[gateway].push(
      waiting, request.tenant, options_.tenants.empty() ? kOnly : options_.tenants[request.tenant],
      queue_.now(),
      (static_cast<double>(prefill_ranks_) + local_ranks_) / static_cast<double>(front_.size()));
  if (!options_.clairvoyant) {
    dispatch(gateway);
    return;
  }
  for (std::size_t e = 0; e < prefill_.size(); ++e)
    if (prefill_[e].idle()) {
      prefill_[e].wake();
      break;
    }
}

void Cluster::dispatch(std::size_t gateway) {
  FrontLine& front = front_[gateway];
  while (front.size() > 0 && view_ready(gateway) > 0) {
    expired_.clear();
    const auto next = front.pop(queue_.now(), expired_);
    for (const RequestId id : expired_)
      refuse(static_cast<std::uint32_t>(id.value));
    if (!next) return;
    const auto id = static_cast<std::uint32_t>(next->value);
    if (!report_.tenants.empty() && measuring())
      report_.tenants[requests_[id].tenant].prefill_seconds += requests_[id].quota;
    if (!place_prefill(id)) refuse(id);
  }
}

void Cluster::refuse(std::uint32_t id) {
  ++ended_;
  if (measured(id)) {
    ++report_.refused;
    if (!report_.tenants.empty()) ++report_.tenants[requests_[id].tenant].refused;
  }
  miss(id);
  mark(Mark::kRefused, id, 0);
}

void Cluster::miss(std::uint32_t id) {
  if (!measured(id) || ++missed_ <= missed_max_) return;
  report_.stopped_early = true;
  queue_.stop();
}

// A rank takes something from the queue in front while it has less than the limit to do.
//
// Several gateways see the same room at the same time, and not what the others place. So they take
// turns: each report of a rank gives it to another gateway, whose view of it is right until the
// next one. A gateway that is left without a rank may use all that seem idle.
std::size_t Cluster::view_ready(std::size_t gateway) {
  const double limit = options_.front.ahead_steps * profile_.chunk_budget_seconds;
  const std::size_t gateways = options_.gateways;
  std::size_t ready = 0;
  for (std::size_t r = 0; r < prefill_views_.size(); ++r)
    prefill_reports_.fill(gateway, r, prefill_views_[r]);
  if (options_.prefill_on_decode) view_local(gateway);
  for (std::size_t r = 0; r < prefill_views_.size(); ++r) {
    RankView& view = prefill_views_[r];
    view.accepts = accepts(r);
    if (view.accepts && !front_.empty()) {
      view.accepts = view.outstanding_seconds < limit &&
                     (gateway + prefill_reports_.number(r) + r) % gateways == 0;
    }
    ready += view.accepts ? 1 : 0;
  }
  if (ready > 0 || gateways == 1 || front_.empty()) return ready;
  for (std::size_t r = 0; r < prefill_views_.size(); ++r) {
    RankView& view = prefill_views_[r];
    view.accepts = accepts(r) && view.outstanding_seconds <= 0;
    ready += view.accepts ? 1 : 0;
  }
  return ready;
}

// Fills what views hold for this request.
void Cluster::view_prefill(const RequestState& request, std::span<const std::uint64_t> blocks) {
  const std::int64_t prompt = prompt_of(request);
  const Instant now = queue_.now();
  std::int64_t hit = 0;
  double compute = 0;
  HitLoads::Hit load;
  double wait = 0;
  std::size_t host = loads_.hosts();
  std::size_t seen = caches_.views();
  for (std::size_t r = 0; r < prefill_views_.size(); ++r) {
    RankView& view = prefill_views_[r];
    if (r / prefill_group_ % caches_.views() != seen) {
      seen = r / prefill_group_ % caches_.views();
      const TierHit found = believed().peek(seen, blocks, now);
      hit = usable(found.total(), prompt);
      compute = routing::prefill_seconds(profile_.costs.prefill, static_cast<double>(prompt - hit),
                                         static_cast<double>(hit));
      load = loads_.hit(found, hit);
      host = loads_.hosts();
    }
    if (host_of(r) != host) {
      host = host_of(r);
      wait = loads_.wait(host, load, now);
    }
    view.hit_tokens = hit;
    view.compute_seconds = is_local(r) ? compute * slowdown_[r - prefill_ranks_] : compute;
    view.load_seconds = load.seconds();
    view.load_outstanding_seconds = wait;
  }
}

bool Cluster::place_prefill(std::uint32_t id) {
  RequestState& request = requests_[id];
  blocks_in_.of(arrivals_[id], blocks_);
  // With a queue in front, the views are as dispatch() left them.
  if (front_.empty()) view_ready(request.gateway);
  view_prefill(request, blocks_);
  const auto named = trace_.blocks_of(trace_of(request));
  const std::uint64_t session =
      named.size() > 1 ? evaluate::block_in_copy(named[1], arrivals_[id].copy) : 0;
  prefill_policy_->place({.prompt_tokens = prompt_of(request),
                          .output_tokens = 0,
                          .session = session,
                          .ties_from = ties_from(request.gateway, prefill_views_.size())},
                         prefill_views_, placement_rng_, decision_);
  if (!decision_.choice) return false;
  request.prefill_rank = *decision_.choice;
  request.quota = prefill_views_[request.prefill_rank].compute_seconds;
  if (is_local(request.prefill_rank)) place_local(id);
  prefill_reports_.placed(request.gateway, request.prefill_rank,
                          {.seconds = request.quota, .requests_waiting = 1}, queue_.now());
  mark(Mark::kPlaced, id, request.prefill_rank);
  // What the gateway believed may be gone, or more may be there.
  const TierHit found = caches_.match(request.prefill_rank / prefill_group_, blocks_, queue_.now());
  request.hit = usable(found.total(), prompt_of(request));
  request.load = loads_.hit(found, request.hit);
  if (measured(id) && !request.has_first_token) {
    report_.hit_tokens += static_cast<double>(request.hit);
    for (std::size_t tier = 0; tier < kCacheTiers.size(); ++tier)
      report_.hit_blocks[tier] += found.blocks[tier];
  }
  load_then_push(id);
  return true;
}

// It waits in its rank's queue once its hit is there.
void Cluster::load_then_push(std::uint32_t id) {
  const RequestState& request = requests_[id];
  const std::size_t rank = request.prefill_rank;
  const auto push = [this, id, rank, life = request.life] {
    const RequestState& r = requests_[id];
    if (life != r.life) return;
    if (r.local) {
      push_local(id);
      return;
    }
    if (!prefill_up_[rank / prefill_group_]) return;
    prefill_[rank / prefill_group_].push(rank % prefill_group_,
                                         {RequestId(id), r.hit, prompt_of(r) - r.hit});
  };
  if (request.hit <= 0 || request.load.seconds() <= 0) {
    push();
    return;
  }
  Instant there{};
  const bool passed_on = loads_.take(host_of(rank), request.load, queue_.now(), there);
  if (passed_on && measured(id)) ++report_.loads_through_decode;
  const double quota = request.quota;
  loading_seconds_[rank] += quota;
  loading_requests_[rank] += 1;
  queue_.call_at(there, [this, rank, quota, push] {
    loading_seconds_[rank] -= quota;
    loading_requests_[rank] -= 1;
    push();
  });
}

bool Cluster::pull(std::size_t engine, routing::QueuedPrompt& out) {
  expired_.clear();
  const auto next = front_[0].pop(queue_.now(), expired_);
  for (const RequestId id : expired_)
    refuse(static_cast<std::uint32_t>(id.value));
  if (!next) return false;
  const auto id = static_cast<std::uint32_t>(next->value);
  RequestState& request = requests_[id];
  blocks_in_.of(arrivals_[id], blocks_);
  request.hit = usable(caches_.match(engine, blocks_, queue_.now()).total(), prompt_of(request));
  if (measured(id)) report_.hit_tokens += static_cast<double>(request.hit);
  mark(Mark::kPlaced, id, engine);
  out = {RequestId(id), request.hit, prompt_of(request) - request.hit};
  return true;
}

void Cluster::computed(std::uint32_t id, std::int64_t last_chunk) {
  RequestState& request = requests_[id];
  const evaluate::TraceRequest& t = trace_of(request);
  request.computed = true;
  request.last_chunk = last_chunk;
  if (request.has_first_token) {
    if (measuring()) report_.add_gap(routing::to_seconds(queue_.now() - request.last_token));
  } else {
    request.has_first_token = true;
    request.first_token = queue_.now();
    const double ttft = seconds_since_arrival(request);
    request.in_time = ttft <= options_.slo.first_token_limit(profile_.costs.prefill,
                                                             static_cast<double>(t.prompt_tokens));
    if (measured(id)) {
      report_.ttft.add(ttft);
      if (!report_.tenants.empty()) {
        TenantReport& tenant = report_.tenants[request.tenant];
        tenant.ttft.add(ttft);
        tenant.first_in_time += request.in_time ? 1 : 0;
      }
      if (request.in_time)
        ++report_.first_in_time;
      else
        miss(id);
    }
  }
  request.last_token = queue_.now();
  mark(Mark::kComputed, id, request.prefill_rank);
  blocks_in_.of(arrivals_[id], blocks_);
  caches_.insert(request.prefill_rank / prefill_group_, blocks_, queue_.now());
  if (believed_) cache_event(request.prefill_rank, std::vector(blocks_));
  if (t.output_tokens <= request.emitted + 1) {
    finished(id);
    return;
  }
  request.waits = true;
  if (request.decode_rank != kNoRank) hand_off(id);
}

}  // namespace penstock::sim
