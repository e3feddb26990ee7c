// From the first chunk of a prompt to the last token of its answer.
#include <algorithm>

#include "sim/cluster_run.h"

namespace penstock::sim {

void Cluster::start_decode_place(std::uint32_t id) {
  RequestState& request = requests_[id];
  if (std::exchange(request.started, true) ||
      trace_of(request).output_tokens <= request.emitted + 1)
    return;
  if (!place_decode(id)) homeless_.push_back(id);
}

bool Cluster::place_decode(std::uint32_t id) {
  RequestState& request = requests_[id];
  for (std::size_t r = 0; r < decode_views_.size(); ++r) {
    decode_reports_.fill(request.gateway, r, decode_views_[r]);
    decode_views_[r].accepts = decode_accepts_[decode_views_[r].engine];
  }
  decode_policy_->place({.prompt_tokens = prompt_of(request),
                         .output_tokens = static_cast<std::int64_t>(expected_output_),
                         .session = id + std::uint64_t{1},
                         .ties_from = ties_from(request.gateway, decode_views_.size())},
                        decode_views_, placement_rng_, decision_);
  if (!decision_.choice) return false;
  give_decode(id, *decision_.choice);
  return true;
}

void Cluster::give_decode(std::uint32_t id, std::uint32_t rank) {
  RequestState& request = requests_[id];
  request.decode_rank = rank;
  request.on_way = true;
  const Load load{.requests_waiting = 1,
                  .kv_tokens = static_cast<double>(prompt_of(request)) + growth()};
  on_way_[request.decode_rank] += load;
  decode_reports_.placed(request.gateway, request.decode_rank, load, queue_.now());
}

void Cluster::hand_off(std::uint32_t id) {
  const RequestState& request = requests_[id];
  if (request.local) {  // its KV is where it was computed
    deliver(id);
    return;
  }
  const bool same_zone =
      request.prefill_rank == kNoRank ||
      prefill_views_[request.prefill_rank].zone == decode_views_[request.decode_rank].zone;
  const routing::FlowCoefficients& flow =
      same_zone ? profile_.costs.transfer_same_zone : profile_.costs.transfer_other_zone;
  const double bytes = static_cast<double>(request.last_chunk * profile_.kv_bytes_per_token);
  const double seconds =
      flow.latency + (flow.bytes_per_second > 0 ? bytes / flow.bytes_per_second : 0);
  queue_.call_at(queue_.now() + routing::to_duration(seconds), [this, id, life = request.life] {
    if (life == requests_[id].life) deliver(id);
  });
}

void Cluster::deliver(std::uint32_t id) {
  RequestState& r = requests_[id];
  const std::size_t engine = r.decode_rank / decode_group_;
  if (!decode_up_[engine]) return;  // found when its loss is noticed
  r.on_way = false;
  on_way_[r.decode_rank] =
      on_way_[r.decode_rank] -
      Load{.requests_waiting = 1, .kv_tokens = static_cast<double>(prompt_of(r)) + growth()};
  decode_[engine].push(r.decode_rank % decode_group_, RequestId(id), prompt_of(r),
                       trace_of(r).output_tokens - r.emitted - 1);
}

void Cluster::finished(std::uint32_t id) {
  RequestState& request = requests_[id];
  request.finished = true;
  ++ended_;
  const auto output = static_cast<double>(trace_of(request).output_tokens);
  if (measured(id)) {
    ++report_.finished;
    // Steps are rounded to nanoseconds.
    const double took = routing::to_seconds(queue_.now() - request.first_token);
    if (request.in_time && took <= options_.slo.tau * (output - 1) * (1 + 1e-9) + 1e-9)
      ++report_.met;
  }
  // About the last thousand answers.
  expected_output_ += (output - expected_output_) * 1e-3;
  mark(Mark::kFinished, id, 0);
}

void Cluster::decode_stepped(std::size_t engine, double seconds, std::int64_t tokens) {
  for (const std::uint32_t id : joined_) {
    RequestState& request = requests_[id];
    request.waits = false;
    --tokens;
    if (measuring()) report_.add_gap(routing::to_seconds(queue_.now() - request.last_token));
  }
  if (measuring()) {
    if (tokens > 0) report_.add_gap(seconds, static_cast<std::uint64_t>(tokens));
    report_.output_tokens += static_cast<double>(std::max<std::int64_t>(tokens, 0)) +
                             static_cast<double>(joined_.size());
  }
  joined_.clear();
  report_decode(engine);
  place_homeless();
}

// Those that found no room, in their order, while they find some.
void Cluster::place_homeless() {
  std::size_t placed = 0;
  while (placed < homeless_.size() && place_decode(homeless_[placed])) {
    if (requests_[homeless_[placed]].computed) hand_off(homeless_[placed]);
    ++placed;
  }
  homeless_.erase(homeless_.begin(), homeless_.begin() + static_cast<std::ptrdiff_t>(placed));
}

// A request that waits for its next token when the measurement ends has had a long gap already, or
// none that counts.
void Cluster::count_open_gaps() {
  for (const RequestState& request : requests_) {
    if (!request.waits) continue;
    const double open = routing::to_seconds(queue_.now() - request.last_token);
    if (open > options_.slo.tau) report_.add_gap(open);
  }
}

}  // namespace penstock::sim
