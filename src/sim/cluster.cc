#include "sim/cluster.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "sim/block_cache.h"
#include "sim/decode_engine.h"
#include "sim/event_queue.h"
#include "sim/prefill_engine.h"
#include "sim/rank_reports.h"

namespace penstock::sim {
namespace {

using routing::Profile;
using routing::RankView;

constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();
// Expected answer until some have finished.
constexpr double kFirstGuessTokens = 256;
// Kinds of what the digest notes.
enum class Mark : std::uint8_t { kPlaced, kRefused, kComputed, kFinished };

struct RequestState {
  std::uint32_t arrival = 0;  // index
  std::uint32_t gateway = 0;
  std::uint32_t prefill_rank = kNoRank;
  std::uint32_t decode_rank = kNoRank;
  std::int64_t hit = 0;
  double quota = 0;  // predicted compute
  std::int64_t last_chunk = 0;
  Instant first_token{};
  bool computed = false;
  bool started = false;
};

class Cluster {
 public:
  Cluster(const Profile& profile, const evaluate::Trace& trace,
          const std::vector<evaluate::Arrival>& arrivals, const ClusterOptions& options,
          std::unique_ptr<routing::PlacementPolicy> prefill_policy,
          std::unique_ptr<routing::PlacementPolicy> decode_policy,
          routing::PrefillBalancer* balancer);

  Result<Report> run();

 private:
  void next_arrival();
  void arrive(std::uint32_t index);
  std::int64_t view_prefill(const RequestState& request, std::span<const std::uint64_t> blocks);
  void load_then_push(std::uint32_t id);
  void start_decode_place(std::uint32_t id);
  bool place_decode(std::uint32_t id);
  void computed(std::uint32_t id, std::int64_t last_chunk);
  void hand_off(std::uint32_t id);
  void finished(std::uint32_t id);
  void decode_stepped(std::size_t engine, double seconds, std::int64_t tokens);
  void report_prefill(std::size_t engine);
  void report_decode(std::size_t engine);
  void send(RankReports& to, RankReports::Snapshot&& snapshot);
  void sample_balance();
  bool measured(std::uint32_t index) const {
    return arrivals_[index].at_us >=
           std::chrono::duration_cast<std::chrono::microseconds>(options_.warmup).count();
  }
  bool measuring() const { return queue_.now() >= Instant{} + options_.warmup; }
  const evaluate::TraceRequest& trace_of(const RequestState& r) const {
    return trace_.requests[arrivals_[r.arrival].request];
  }
  void mark(Mark kind, std::uint32_t id, std::uint64_t what) {
    digest_.add(queue_.now());
    digest_.add((static_cast<std::uint64_t>(id) << 8 | static_cast<std::uint64_t>(kind)) ^
                what << 40);
  }
  BlockCache& cache_of(std::uint32_t prefill_rank) {
    return options_.cache_scope == CacheScope::kCluster ? caches_[0]
                                                        : caches_[prefill_rank / prefill_group_];
  }
  std::vector<std::uint64_t> blocks_of(std::uint32_t index) const;
  double growth() const { return expected_output_ / 2; }

  const Profile& profile_;
  const evaluate::Trace& trace_;
  const std::vector<evaluate::Arrival>& arrivals_;
  ClusterOptions options_;
  std::unique_ptr<routing::PlacementPolicy> prefill_policy_;
  std::unique_ptr<routing::PlacementPolicy> decode_policy_;
  routing::PrefillBalancer* balancer_;  // the prefill policy, when it is that
  std::size_t prefill_group_;
  std::size_t decode_group_;
  EventQueue queue_;
  Rng placement_rng_;
  Rng loss_rng_;
  PrefillEvents prefill_events_;
  DecodeEvents decode_events_;
  std::vector<PrefillEngine> prefill_;
  std::vector<DecodeEngine> decode_;
  std::vector<BlockCache> caches_;
  std::vector<RankView> prefill_views_;
  std::vector<RankView> decode_views_;
  RankReports prefill_reports_;
  RankReports decode_reports_;
  std::vector<double> loading_seconds_;  // quota placed on a rank and still loading its hit
  std::vector<double> loading_requests_;
  std::vector<Instant> link_free_;  // of each prefill host
  std::vector<Load> on_way_;        // to each decode rank
  std::vector<RequestState> requests_;
  std::vector<std::uint32_t> homeless_;  // computed or started, no decode rank had room
  std::vector<std::uint32_t> joined_;    // in the step under way
  routing::Decision decision_;
  std::uint32_t next_ = 0;  // arrival
  double expected_output_ = kFirstGuessTokens;
  Report report_;
  Digest digest_;
};

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
      prefill_group_(static_cast<std::size_t>(profile.prefill_pool.group_ranks)),
      decode_group_(static_cast<std::size_t>(profile.decode_pool.group_ranks)),
      placement_rng_(options.seed * 4 + 1),
      loss_rng_(options.seed * 4 + 2),
      prefill_reports_(options.gateways, static_cast<std::size_t>(profile.prefill_pool.ranks)),
      decode_reports_(options.gateways, static_cast<std::size_t>(profile.decode_pool.ranks)) {
  const auto prefill_ranks = static_cast<std::size_t>(profile.prefill_pool.ranks);
  const auto decode_ranks = static_cast<std::size_t>(profile.decode_pool.ranks);
  prefill_events_ = {
      .started = [this](RequestId id) { start_decode_place(static_cast<std::uint32_t>(id.value)); },
      .done = [this](RequestId id,
                     std::int64_t last) { computed(static_cast<std::uint32_t>(id.value), last); },
      .stepped = [this](std::size_t engine) { report_prefill(engine); }};
  decode_events_ = {
      .finished = [this](RequestId id) { finished(static_cast<std::uint32_t>(id.value)); },
      .stepped = [this](std::size_t engine, double seconds,
                        std::int64_t tokens) { decode_stepped(engine, seconds, tokens); },
      .joined = [this](RequestId id) { joined_.push_back(static_cast<std::uint32_t>(id.value)); }};
  const std::size_t engines = prefill_ranks / prefill_group_;
  for (std::size_t e = 0; e < engines; ++e)
    prefill_.emplace_back(queue_, profile, e, prefill_group_, options.seed * 1000 + e,
                          prefill_events_);
  for (std::size_t e = 0; e < decode_ranks / decode_group_; ++e)
    decode_.emplace_back(queue_, profile, e, decode_group_, options.seed * 1000 + 500 + e,
                         decode_events_);
  const std::size_t caches = options.cache_scope == CacheScope::kCluster ? 1 : engines;
  for (std::size_t c = 0; c < caches; ++c)
    caches_.emplace_back(options.cache_blocks == 0 ? std::numeric_limits<std::uint32_t>::max()
                                                   : options.cache_blocks / caches,
                         options.cache_ttl);
  prefill_views_.resize(prefill_ranks);
  for (std::size_t r = 0; r < prefill_ranks; ++r) {
    prefill_views_[r].id = {WorkerId(r / prefill_group_),
                            static_cast<std::uint32_t>(r % prefill_group_)};
    prefill_views_[r].engine = static_cast<std::uint32_t>(r / prefill_group_);
  }
  decode_views_.resize(decode_ranks);
  for (std::size_t r = 0; r < decode_ranks; ++r) {
    decode_views_[r].id = {WorkerId(1'000'000 + r / decode_group_),
                           static_cast<std::uint32_t>(r % decode_group_)};
    decode_views_[r].engine = static_cast<std::uint32_t>(r / decode_group_);
    decode_views_[r].kv_capacity = profile.decode_pool.kv_tokens;
  }
  loading_seconds_.resize(prefill_ranks);
  loading_requests_.resize(prefill_ranks);
  link_free_.resize(prefill_ranks / static_cast<std::size_t>(profile.prefill_pool.host_ranks));
  on_way_.resize(decode_ranks);
  requests_.resize(arrivals.size());
}

std::vector<std::uint64_t> Cluster::blocks_of(std::uint32_t index) const {
  const evaluate::Arrival& arrival = arrivals_[index];
  std::vector<std::uint64_t> blocks;
  for (const std::uint64_t block : trace_.blocks_of(trace_.requests[arrival.request]))
    blocks.push_back(evaluate::block_in_copy(block, arrival.copy));
  return blocks;
}

Result<Report> Cluster::run() {
  report_.prefill_policy = prefill_policy_->name();
  report_.decode_policy = decode_policy_->name();
  const Instant last = Instant{} + std::chrono::microseconds(arrivals_.back().at_us);
  if (last <= Instant{} + options_.warmup)
    return fail(ErrorCode::kInvalidArgument,
                "simulate: the load ends before the warm-up does; make it longer");
  report_.measured_seconds = routing::to_seconds(last - options_.warmup - Instant{});
  next_arrival();
  for (Instant t = Instant{} + options_.warmup; t <= last; t += std::chrono::seconds(1))
    queue_.call_at(t, [this] { sample_balance(); });
  if (!queue_.run_until(last, options_.events_max))
    return fail(ErrorCode::kInternal, "simulate: too many events");
  // What is measured is the steady state up to the last arrival, and then the fate of those that
  // had arrived; what decodes on after them is not counted among the gaps.
  const Report steady = report_;
  double busy = 0;
  for (const PrefillEngine& engine : prefill_)
    busy += engine.busy_seconds();
  if (!queue_.run(options_.events_max))
    return fail(ErrorCode::kInternal, "simulate: too many events");
  report_.gaps = steady.gaps;
  report_.output_tokens = steady.output_tokens;
  report_.prefill_busy =
      busy / routing::to_seconds(last - Instant{}) / static_cast<double>(prefill_.size());
  for (const DecodeEngine& engine : decode_)
    report_.preemptions += engine.preemptions();
  report_.events = queue_.events();
  report_.digest = digest_.value();
  return report_;
}

void Cluster::next_arrival() {
  if (next_ >= arrivals_.size()) return;
  const std::uint32_t index = next_++;
  queue_.call_at(Instant{} + std::chrono::microseconds(arrivals_[index].at_us), [this, index] {
    arrive(index);
    next_arrival();
  });
}

// Fills the views for this request; returns the hit that any rank could use (cluster scope).
std::int64_t Cluster::view_prefill(const RequestState& request,
                                   std::span<const std::uint64_t> blocks) {
  const evaluate::TraceRequest& t = trace_of(request);
  const Instant now = queue_.now();
  const auto usable = [&](std::size_t matched) {  // the last token is always computed
    return std::min(static_cast<std::int64_t>(matched) * trace_.block_tokens, t.prompt_tokens - 1);
  };
  std::int64_t hit = 0;
  double compute = 0;
  double load = 0;
  std::size_t engine = prefill_.size();
  const routing::FlowCoefficients& flow = profile_.costs.load[std::to_underlying(
      options_.cache_scope == CacheScope::kCluster ? KvTier::kCluster : KvTier::kHost)];
  for (std::size_t r = 0; r < prefill_views_.size(); ++r) {
    RankView& view = prefill_views_[r];
    prefill_reports_.fill(request.gateway, r, view);
    const bool other = options_.cache_scope == CacheScope::kEngine && view.engine != engine;
    if (r == 0 || other) {
      engine = view.engine;
      hit = usable(cache_of(static_cast<std::uint32_t>(r)).peek(blocks, now));
      compute = routing::prefill_seconds(profile_.costs.prefill,
                                         static_cast<double>(t.prompt_tokens - hit),
                                         static_cast<double>(hit));
      load = hit > 0 && flow.bytes_per_second > 0
                 ? flow.latency + static_cast<double>(hit * profile_.kv_bytes_per_token) /
                                      flow.bytes_per_second
                 : 0;
    }
    view.hit_tokens = hit;
    view.compute_seconds = compute;
    view.load_seconds = load;
    const Instant free = link_free_[r / static_cast<std::size_t>(profile_.prefill_pool.host_ranks)];
    view.load_outstanding_seconds = free > now ? routing::to_seconds(free - now) : 0;
  }
  return hit;
}

void Cluster::arrive(std::uint32_t index) {
  RequestState& request = requests_[index];
  request.arrival = index;
  request.gateway = static_cast<std::uint32_t>(index % options_.gateways);
  const evaluate::TraceRequest& t = trace_of(request);
  if (measured(index)) {
    ++report_.arrivals;
    report_.prompt_tokens += static_cast<double>(t.prompt_tokens);
  }
  const std::vector<std::uint64_t> blocks = blocks_of(index);
  if (balancer_ != nullptr) balancer_->advance(queue_.now(), prefill_.size());
  view_prefill(request, blocks);
  const std::uint64_t session = blocks.size() > 1 ? blocks[1] : 0;
  prefill_policy_->place({.prompt_tokens = t.prompt_tokens, .output_tokens = 0, .session = session},
                         prefill_views_, placement_rng_, decision_);
  if (!decision_.choice) {
    if (measured(index)) ++report_.refused;
    mark(Mark::kRefused, index, 0);
    return;
  }
  request.prefill_rank = *decision_.choice;
  const RankView& chosen = prefill_views_[request.prefill_rank];
  request.hit = chosen.hit_tokens;
  request.quota = chosen.compute_seconds;
  if (measured(index)) report_.hit_tokens += static_cast<double>(request.hit);
  if (request.hit > 0) (void)cache_of(request.prefill_rank).match(blocks, queue_.now());
  prefill_reports_.placed(request.gateway, request.prefill_rank,
                          {.seconds = request.quota, .requests_waiting = 1});
  mark(Mark::kPlaced, index, request.prefill_rank);
  load_then_push(index);
}

// Hits of one host are read one after the other over its link.
void Cluster::load_then_push(std::uint32_t id) {
  const RequestState& request = requests_[id];
  const std::size_t rank = request.prefill_rank;
  const auto push = [this, id, rank] {
    const RequestState& r = requests_[id];
    prefill_[rank / prefill_group_].push(rank % prefill_group_,
                                         {RequestId(id), r.hit, trace_of(r).prompt_tokens - r.hit});
  };
  const double load = prefill_views_[rank].load_seconds;
  if (load <= 0) {
    push();
    return;
  }
  Instant& free = link_free_[rank / static_cast<std::size_t>(profile_.prefill_pool.host_ranks)];
  free = std::max(free, queue_.now()) + routing::to_duration(load);
  loading_seconds_[rank] += request.quota;
  loading_requests_[rank] += 1;
  queue_.call_at(free, [this, id, rank, push] {
    loading_seconds_[rank] -= requests_[id].quota;
    loading_requests_[rank] -= 1;
    push();
  });
}

void Cluster::start_decode_place(std::uint32_t id) {
  RequestState& request = requests_[id];
  if (std::exchange(request.started, true) || trace_of(request).output_tokens <= 1) return;
  if (!place_decode(id)) homeless_.push_back(id);
}

bool Cluster::place_decode(std::uint32_t id) {
  RequestState& request = requests_[id];
  for (std::size_t r = 0; r < decode_views_.size(); ++r)
    decode_reports_.fill(request.gateway, r, decode_views_[r]);
  const evaluate::TraceRequest& t = trace_of(request);
  decode_policy_->place({.prompt_tokens = t.prompt_tokens,
                         .output_tokens = static_cast<std::int64_t>(expected_output_),
                         .session = id + std::uint64_t{1}},
                        decode_views_, placement_rng_, decision_);
  if (!decision_.choice) return false;
  request.decode_rank = *decision_.choice;
  const Load load{.requests_waiting = 1,
                  .kv_tokens = static_cast<double>(t.prompt_tokens) + growth()};
  on_way_[request.decode_rank] += load;
  decode_reports_.placed(request.gateway, request.decode_rank, load);
  return true;
}

void Cluster::computed(std::uint32_t id, std::int64_t last_chunk) {
  RequestState& request = requests_[id];
  const evaluate::TraceRequest& t = trace_of(request);
  request.computed = true;
  request.last_chunk = last_chunk;
  request.first_token = queue_.now();
  const double ttft = routing::to_seconds(queue_.now() - Instant{}) -
                      static_cast<double>(arrivals_[request.arrival].at_us) * 1e-6;
  if (measured(request.arrival)) {
    report_.ttft.add(ttft);
    const double alone =
        routing::prefill_seconds(profile_.costs.prefill, static_cast<double>(t.prompt_tokens), 0);
    if (ttft <= std::max(options_.ttft_limit_seconds, options_.ttft_limit_ratio * alone))
      ++report_.met;
  }
  mark(Mark::kComputed, id, request.prefill_rank);
  cache_of(request.prefill_rank).insert(blocks_of(request.arrival), queue_.now());
  if (t.output_tokens <= 1)
    finished(id);
  else if (request.decode_rank != kNoRank)
    hand_off(id);
}

void Cluster::hand_off(std::uint32_t id) {
  const RequestState& request = requests_[id];
  const routing::FlowCoefficients& flow = profile_.costs.transfer_same_zone;
  const double bytes = static_cast<double>(request.last_chunk * profile_.kv_bytes_per_token);
  const double seconds =
      flow.latency + (flow.bytes_per_second > 0 ? bytes / flow.bytes_per_second : 0);
  queue_.call_at(queue_.now() + routing::to_duration(seconds), [this, id] {
    const RequestState& r = requests_[id];
    const evaluate::TraceRequest& t = trace_of(r);
    on_way_[r.decode_rank] =
        on_way_[r.decode_rank] -
        Load{.requests_waiting = 1, .kv_tokens = static_cast<double>(t.prompt_tokens) + growth()};
    decode_[r.decode_rank / decode_group_].push(r.decode_rank % decode_group_, RequestId(id),
                                                t.prompt_tokens, t.output_tokens - 1);
  });
}

void Cluster::finished(std::uint32_t id) {
  const RequestState& request = requests_[id];
  if (measured(request.arrival)) ++report_.finished;
  // About the last thousand answers.
  expected_output_ +=
      (static_cast<double>(trace_of(request).output_tokens) - expected_output_) * 1e-3;
  mark(Mark::kFinished, id, 0);
}

void Cluster::decode_stepped(std::size_t engine, double seconds, std::int64_t tokens) {
  if (measuring()) {
    for (const std::uint32_t id : joined_) {
      report_.gaps.add(routing::to_seconds(queue_.now() - requests_[id].first_token));
      --tokens;
    }
    if (tokens > 0) report_.gaps.add(seconds, static_cast<std::uint64_t>(tokens));
    report_.output_tokens += static_cast<double>(tokens) + static_cast<double>(joined_.size());
  }
  joined_.clear();
  report_decode(engine);
  // Those that found no room, in their order, while they find some.
  std::size_t placed = 0;
  while (placed < homeless_.size() && place_decode(homeless_[placed])) {
    if (requests_[homeless_[placed]].computed) hand_off(homeless_[placed]);
    ++placed;
  }
  homeless_.erase(homeless_.begin(), homeless_.begin() + static_cast<std::ptrdiff_t>(placed));
}

void Cluster::send(RankReports& to, RankReports::Snapshot&& snapshot) {
  if (options_.report_lag <= Duration::zero()) {
    to.arrive(std::move(snapshot));
    return;
  }
  queue_.call_at(queue_.now() + options_.report_lag,
                 [&to, kept = std::move(snapshot)]() mutable { to.arrive(std::move(kept)); });
}

void Cluster::report_prefill(std::size_t engine) {
  if (options_.report_loss > 0 && loss_rng_.uniform() < options_.report_loss) return;
  for (std::size_t r = 0; r < prefill_group_; ++r) {
    const std::size_t rank = engine * prefill_group_ + r;
    send(prefill_reports_,
         prefill_reports_.snapshot(
             rank, {.seconds = prefill_[engine].outstanding_seconds(r) + loading_seconds_[rank],
                    .requests_waiting = static_cast<double>(prefill_[engine].waiting(r)) +
                                        loading_requests_[rank]}));
  }
}

void Cluster::report_decode(std::size_t engine) {
  if (options_.report_loss > 0 && loss_rng_.uniform() < options_.report_loss) return;
  for (std::size_t r = 0; r < decode_group_; ++r) {
    const std::size_t rank = engine * decode_group_ + r;
    Load truth{.requests_running = static_cast<double>(decode_[engine].running(r)),
               .requests_waiting = static_cast<double>(decode_[engine].waiting(r)),
               .kv_tokens = static_cast<double>(decode_[engine].kv_tokens(r)) +
                            growth() * static_cast<double>(decode_[engine].running(r))};
    truth += on_way_[rank];
    send(decode_reports_, decode_reports_.snapshot(rank, truth));
  }
}

void Cluster::sample_balance() {
  const auto add = [](Balance& balance, auto&& value_of, std::size_t ranks) {
    double sum = 0;
    double most = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      const double value = value_of(r);
      sum += value;
      most = std::max(most, value);
    }
    if (sum <= 0) return;
    balance.sum += most * static_cast<double>(ranks) / sum;
    ++balance.samples;
  };
  add(
      report_.prefill_quota,
      [&](std::size_t r) {
        return prefill_[r / prefill_group_].outstanding_seconds(r % prefill_group_);
      },
      prefill_views_.size());
  add(
      report_.decode_requests,
      [&](std::size_t r) {
        return static_cast<double>(decode_[r / decode_group_].running(r % decode_group_));
      },
      decode_views_.size());
  add(
      report_.decode_kv,
      [&](std::size_t r) {
        return static_cast<double>(decode_[r / decode_group_].kv_tokens(r % decode_group_));
      },
      decode_views_.size());
}

}  // namespace

Result<Report> simulate(const Profile& profile, const evaluate::Trace& trace,
                        const std::vector<evaluate::Arrival>& arrivals,
                        const ClusterOptions& options) {
  TRY_STATUS(routing::validate(profile));
  if (arrivals.empty()) return fail(ErrorCode::kInvalidArgument, "simulate: no arrivals");
  if (options.gateways < 1 || options.gateways > 1024)
    return fail(ErrorCode::kInvalidArgument, "simulate: from 1 to 1024 gateways", "gateways");
  std::unique_ptr<routing::PlacementPolicy> prefill;
  routing::PrefillBalancer* balancer = nullptr;
  if (options.prefill_policy == "default") {
    routing::PrefillBalancerOptions prefill_options = options.prefill;
    prefill_options.step_seconds = profile.chunk_budget_seconds;
    auto made = std::make_unique<routing::PrefillBalancer>(prefill_options);
    balancer = made.get();
    prefill = std::move(made);
  } else {
    TRY(prefill, routing::make_policy(options.prefill_policy, options.policy));
  }
  std::unique_ptr<routing::PlacementPolicy> decode;
  if (options.decode_policy == "default") {
    decode = std::make_unique<routing::DecodeBalancer>(options.decode);
  } else {
    TRY(decode, routing::make_policy(options.decode_policy, options.policy));
  }
  Cluster cluster(profile, trace, arrivals, options, std::move(prefill), std::move(decode),
                  balancer);
  return cluster.run();
}

}  // namespace penstock::sim
