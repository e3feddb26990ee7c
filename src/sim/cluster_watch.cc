// What gateways are told, and what the report samples.
#include <algorithm>

#include "sim/cluster_run.h"

namespace penstock::sim {
namespace {

// With reports that never arrive, or no rank large enough, somebody may wait for ever.
constexpr Duration kBeatsAfterLast = std::chrono::minutes(10);

}  // namespace

void Cluster::report_prefill(std::size_t engine) {
  if (options_.report_loss > 0 && loss_rng_.uniform() < options_.report_loss) return;
  std::vector<RankReports::Snapshot> snapshots;
  snapshots.reserve(prefill_group_);
  for (std::size_t r = 0; r < prefill_group_; ++r) {
    const std::size_t rank = engine * prefill_group_ + r;
    snapshots.push_back(prefill_reports_.snapshot(
        rank,
        {.seconds = prefill_[engine].outstanding_seconds(r) + loading_seconds_[rank],
         .requests_waiting =
             static_cast<double>(prefill_[engine].waiting(r)) + loading_requests_[rank]},
        queue_.now()));
  }
  const auto arrive = [this](std::vector<RankReports::Snapshot>& all) {
    for (RankReports::Snapshot& snapshot : all)
      prefill_reports_.arrive(std::move(snapshot), queue_.now());
    if (options_.clairvoyant) return;
    dispatch_all(all.front().rank / prefill_group_);
  };
  if (options_.report_lag <= Duration::zero()) {
    arrive(snapshots);
    return;
  }
  queue_.call_at(queue_.now() + options_.report_lag,
                 [arrive, kept = std::move(snapshots)]() mutable { arrive(kept); });
}

// Whose turn it is first goes round, so that no gateway gets the best of all ranks.
void Cluster::dispatch_all(std::size_t first) {
  for (std::size_t g = 0; g < front_.size(); ++g)
    dispatch((g + first + queue_.events()) % front_.size());
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
    send(decode_reports_, decode_reports_.snapshot(rank, truth, queue_.now()));
    if (options_.prefill_on_decode) send(prefill_reports_, local_snapshot(rank));
  }
  if (!options_.prefill_on_decode) return;
  // After those reports, which come as late.
  if (options_.report_lag <= Duration::zero())
    dispatch_all(engine);
  else
    queue_.call_at(queue_.now() + options_.report_lag, [this, engine] { dispatch_all(engine); });
}

// Not all at once.
void Cluster::start_heartbeats() {
  if (options_.heartbeat <= Duration::zero()) return;
  const std::size_t engines = prefill_.size() + decode_.size();
  for (std::size_t i = 0; i < engines; ++i) {
    const Pool pool = i < prefill_.size() ? Pool::kPrefill : Pool::kDecode;
    const std::size_t engine = i < prefill_.size() ? i : i - prefill_.size();
    queue_.call_at(Instant{} + options_.heartbeat * (i + 1) / engines,
                   [this, pool, engine] { beat(pool, engine); });
  }
}

// As long as somebody may be waiting for it.
void Cluster::beat(Pool pool, std::size_t engine) {
  const Instant last = Instant{} + std::chrono::microseconds(arrivals_.back().at_us);
  if (ended_ == arrivals_.size() || queue_.now() > last + kBeatsAfterLast) return;
  if (pool == Pool::kPrefill && prefill_up_[engine] && prefill_[engine].idle())
    report_prefill(engine);
  if (pool == Pool::kDecode && decode_up_[engine] && decode_[engine].idle()) {
    report_decode(engine);
    place_homeless();
  }
  queue_.call_at(queue_.now() + options_.heartbeat, [this, pool, engine] { beat(pool, engine); });
}

void Cluster::send(RankReports& to, RankReports::Snapshot&& snapshot) {
  if (options_.report_lag <= Duration::zero()) {
    to.arrive(std::move(snapshot), queue_.now());
    return;
  }
  queue_.call_at(queue_.now() + options_.report_lag,
                 [this, &to, kept = std::move(snapshot)]() mutable {
                   to.arrive(std::move(kept), queue_.now());
                 });
}

// What is computed is announced; the announcement may be late or lost.
void Cluster::cache_event(std::uint32_t prefill_rank, std::vector<std::uint64_t>&& blocks) {
  if (options_.event_loss > 0 && loss_rng_.uniform() < options_.event_loss) return;
  const auto learn = [this, prefill_rank, kept = std::move(blocks)] {
    believed_->insert(prefill_rank / prefill_group_, kept, queue_.now());
  };
  if (options_.event_lag <= Duration::zero())
    learn();
  else
    queue_.call_at(queue_.now() + options_.event_lag, learn);
}

void Cluster::sample() {
  Sample& now = report_.samples.emplace_back();
  now.at_seconds = routing::to_seconds(queue_.now() - Instant{});
  for (std::size_t r = 0; r < prefill_ranks_; ++r)
    now.prefill_seconds.push_back(
        static_cast<float>(prefill_[r / prefill_group_].outstanding_seconds(r % prefill_group_)));
  for (std::size_t r = 0; r < decode_views_.size(); ++r) {
    const DecodeEngine& engine = decode_[r / decode_group_];
    now.decode_requests.push_back(static_cast<float>(engine.running(r % decode_group_)));
    now.decode_kv.push_back(static_cast<float>(engine.kv_tokens(r % decode_group_)));
  }
  for (const FrontLine& front : front_) {
    now.queued += front.size();
    now.put_off += front.late();
  }
  now.prompt_tokens = report_.prompt_tokens;
  now.hit_tokens = report_.hit_tokens;
  report_.prefill_quota.add(now.prefill_seconds);
  report_.decode_requests.add(now.decode_requests);
  report_.decode_kv.add(now.decode_kv);
  // So that an hour's samples stay small, and a report's plots legible: every other one goes when
  // there are too many, and from then on every other one is kept.
  if (report_.samples_seen++ % report_.sample_every != 0) report_.samples.pop_back();
  if (report_.samples.size() < kSamplesMax) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < report_.samples.size(); i += 2)
    std::swap(report_.samples[kept++], report_.samples[i]);
  report_.samples.resize(kept);
  report_.sample_every *= 2;
}

}  // namespace penstock::sim
