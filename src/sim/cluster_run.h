// One run of the cluster model (sim/cluster.h), shared by cluster.cc (arrivals and prefill),
// cluster_decode.cc, cluster_changes.cc (failures, scale) and cluster_watch.cc (reports, samples).
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sim/block_ids.h"
#include "sim/cluster.h"
#include "sim/decode_engine.h"
#include "sim/event_queue.h"
#include "sim/hit_loads.h"
#include "sim/prefill_engine.h"
#include "sim/rank_reports.h"

namespace penstock::sim {

inline constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();

class Cluster {
 public:
  Cluster(const routing::Profile& profile, const evaluate::Trace& trace,
          const std::vector<evaluate::Arrival>& arrivals, const ClusterOptions& options,
          std::unique_ptr<routing::PlacementPolicy> prefill_policy,
          std::unique_ptr<routing::PlacementPolicy> decode_policy,
          routing::PrefillBalancer* balancer);

  Result<Report> run();

 private:
  // Kinds of what the digest notes.
  enum class Mark : std::uint8_t { kPlaced, kRefused, kComputed, kFinished, kChanged };

  struct RequestState {
    std::uint32_t arrival = 0;  // index
    std::uint32_t gateway = 0;
    std::uint32_t prefill_rank = kNoRank;
    std::uint32_t decode_rank = kNoRank;
    std::uint32_t life = 0;  // placed anew after a failure
    std::uint32_t tenant = 0;
    std::int64_t hit = 0;
    std::int64_t emitted = 0;  // tokens, when it had to be placed anew
    std::int64_t last_chunk = 0;
    double quota = 0;  // predicted compute
    HitLoads::Hit load;
    Instant first_token{};
    Instant last_token{};  // known when it begins to wait
    bool in_time = false;  // its first token
    bool has_first_token = false;
    bool computed = false;
    bool started = false;
    bool waits = false;  // has a token, and its next one is in no step yet
    bool on_way = false;
    bool finished = false;
    bool local = false;  // its prompt goes to its decode rank
  };

  // cluster.cc
  void next_arrival();
  void arrive(std::uint32_t index);
  std::uint32_t tenant_of(const evaluate::Arrival& arrival) const;
  void queue_or_place(std::uint32_t id);
  void dispatch(std::size_t gateway);
  bool place_prefill(std::uint32_t id);
  void refuse(std::uint32_t id);
  void view_prefill(const RequestState& request, std::span<const std::uint64_t> blocks);
  std::size_t view_ready(std::size_t gateway);  // ranks that take something from the queue
  void load_then_push(std::uint32_t id);
  bool pull(std::size_t engine, routing::QueuedPrompt& out);
  void computed(std::uint32_t id, std::int64_t last_chunk);
  // cluster_decode.cc
  void start_decode_place(std::uint32_t id);
  bool place_decode(std::uint32_t id);
  void give_decode(std::uint32_t id, std::uint32_t rank);
  void hand_off(std::uint32_t id);
  void deliver(std::uint32_t id);
  void finished(std::uint32_t id);
  void joined(std::uint32_t id);
  void decode_stepped(std::size_t engine, double seconds, std::int64_t tokens);
  void place_homeless();
  void count_open_gaps();
  // cluster_local.cc
  void make_local_views();
  void view_local(std::size_t gateway);
  void place_local(std::uint32_t id);
  void push_local(std::uint32_t id);
  RankReports::Snapshot local_snapshot(std::size_t decode_rank);
  // cluster_changes.cc
  Status plan_changes();
  void change(const EngineChange& what);
  void fail_prefill(std::size_t engine);
  void fail_decode(std::size_t engine);
  void place_anew(std::uint32_t id, std::int64_t emitted);
  // cluster_watch.cc
  void report_prefill(std::size_t engine);
  void report_decode(std::size_t engine);
  void start_heartbeats();
  void beat(Pool pool, std::size_t engine);
  void send(RankReports& to, RankReports::Snapshot&& snapshot);
  void dispatch_all(std::size_t first);
  void cache_event(std::uint32_t prefill_rank, std::vector<std::uint64_t>&& blocks);
  void sample();
  void miss(std::uint32_t id);

  bool measured(std::uint32_t index) const {
    return arrivals_[index].at_us >=
           std::chrono::duration_cast<std::chrono::microseconds>(options_.warmup).count();
  }
  bool measuring() const { return queue_.now() >= Instant{} + options_.warmup; }
  const evaluate::TraceRequest& trace_of(const RequestState& r) const {
    return trace_.requests[arrivals_[r.arrival].request];
  }
  // What a request has to have computed before it decodes: its prompt, and what it had emitted.
  std::int64_t prompt_of(const RequestState& r) const {
    return trace_of(r).prompt_tokens + r.emitted;
  }
  void mark(Mark kind, std::uint32_t id, std::uint64_t what) {
    digest_.add(queue_.now());
    digest_.add((static_cast<std::uint64_t>(id) << 8 | static_cast<std::uint64_t>(kind)) ^
                what << 40);
  }
  // What gateways believe is cached: the caches themselves when events are neither late nor lost.
  const TieredCache& believed() const { return believed_ ? *believed_ : caches_; }
  std::int64_t usable(std::size_t matched, std::int64_t prompt) const {
    // The last token is always computed.
    return std::min(static_cast<std::int64_t>(matched) * trace_.block_tokens, prompt - 1);
  }
  double seconds_since_arrival(const RequestState& r) const {
    return routing::to_seconds(queue_.now() - Instant{}) -
           static_cast<double>(arrivals_[r.arrival].at_us) * 1e-6;
  }
  // Where a gateway's look at equal ranks begins: gateways are spread over them.
  std::uint32_t ties_from(std::size_t gateway, std::size_t ranks) const {
    return static_cast<std::uint32_t>(gateway * ranks / options_.gateways);
  }
  double growth() const { return expected_output_ / 2; }
  // Views of decode ranks that compute prompts come after those of the prefill pool.
  bool is_local(std::size_t view) const { return view >= prefill_ranks_; }
  bool accepts(std::size_t view) const {
    const std::size_t engine = prefill_views_[view].engine;
    return is_local(view) ? decode_accepts_[engine - prefill_.size()] : prefill_accepts_[engine];
  }
  std::size_t host_of(std::size_t view) const {
    return is_local(view) ? loads_.host_of_decode(view - prefill_ranks_) : loads_.host_of(view);
  }

  const routing::Profile& profile_;
  const evaluate::Trace& trace_;
  const std::vector<evaluate::Arrival>& arrivals_;
  ClusterOptions options_;
  std::unique_ptr<routing::PlacementPolicy> prefill_policy_;
  std::unique_ptr<routing::PlacementPolicy> decode_policy_;
  routing::PrefillBalancer* balancer_;  // the prefill policy, when it is that
  std::size_t prefill_ranks_;
  std::size_t prefill_group_;
  std::size_t decode_group_;
  EventQueue queue_;
  Rng placement_rng_;
  Rng loss_rng_;
  PrefillEvents prefill_events_;
  DecodeEvents decode_events_;
  std::vector<PrefillEngine> prefill_;
  std::vector<DecodeEngine> decode_;
  std::vector<bool> prefill_accepts_;  // engines, as gateways believe
  std::vector<bool> decode_accepts_;
  std::vector<bool> prefill_up_;  // engines, in truth
  std::vector<bool> decode_up_;
  BlockIds blocks_in_;
  TieredCache caches_;
  std::optional<TieredCache> believed_;
  std::vector<FrontLine> front_;  // of each gateway; one when clairvoyant
  std::vector<routing::RankView> prefill_views_;
  std::vector<routing::RankView> decode_views_;
  RankReports prefill_reports_;
  RankReports decode_reports_;
  std::vector<double> slowdown_;         // of prompts on decode ranks, as believed; scratch
  double local_ranks_ = 0;               // that those are worth
  std::vector<double> loading_seconds_;  // quota placed on a rank and still loading its hit
  std::vector<double> loading_requests_;
  HitLoads loads_;
  std::vector<Load> on_way_;  // to each decode rank
  std::vector<RequestState> requests_;
  std::vector<double> tenant_ends_;      // of each one's part of 1
  std::vector<std::uint32_t> homeless_;  // computed or started, no decode rank had room
  std::vector<std::uint32_t> joined_;    // in the step under way
  std::vector<std::uint64_t> blocks_;    // scratch
  std::vector<RequestId> expired_;       // scratch
  routing::Decision decision_;
  std::uint32_t next_ = 0;    // arrival
  std::size_t ended_ = 0;     // finished or refused
  std::uint64_t missed_ = 0;  // measured arrivals that are late or refused
  std::uint64_t missed_max_ = 0;
  double expected_output_ = 256;  // until some have finished
  Report report_;
  Digest digest_;
};

}  // namespace penstock::sim
