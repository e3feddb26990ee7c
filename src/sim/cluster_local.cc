// Prompts that are computed on decode ranks, beside answers.
#include <algorithm>

#include "sim/cluster_run.h"

namespace penstock::sim {
namespace {

// A rank whose answers fill its steps is as good as closed.
constexpr double kSlowdownMax = 1000;

}  // namespace

void Cluster::make_local_views() {
  for (std::size_t r = 0; r < decode_views_.size(); ++r) {
    routing::RankView view = decode_views_[r];
    view.engine += static_cast<std::uint32_t>(prefill_.size());
    prefill_views_.push_back(view);
  }
  slowdown_.assign(decode_views_.size(), 1);
}

// What a second of a prompt's compute takes there: answers have the first part of every step.
void Cluster::view_local(std::size_t gateway) {
  local_ranks_ = 0;
  for (std::size_t r = 0; r < decode_views_.size(); ++r) {
    decode_reports_.fill(gateway, r, decode_views_[r]);
    const routing::RankView& answers = decode_views_[r];
    const double taken =
        std::max(profile_.costs.step.base,
                 routing::step_seconds(profile_.costs.step, static_cast<double>(answers.running),
                                       static_cast<double>(answers.kv_tokens)));
    const double step = options_.decode_step_seconds;
    slowdown_[r] = std::max(1.0, profile_.costs.decode_moe.mean) * step /
                   std::max(step - taken, step / kSlowdownMax);
    local_ranks_ += 1 / slowdown_[r];
    routing::RankView& view = prefill_views_[prefill_ranks_ + r];
    view.outstanding_seconds *= slowdown_[r];
    view.kv_tokens = answers.kv_tokens;
  }
}

// The rank that computes the prompt answers it; its KV is reserved from now on.
void Cluster::place_local(std::uint32_t id) {
  RequestState& request = requests_[id];
  const std::size_t rank = request.prefill_rank - prefill_ranks_;
  request.quota /= slowdown_[rank];
  request.local = true;
  request.started = true;
  if (measured(id)) ++report_.prompts_on_decode;
  if (trace_of(request).output_tokens > request.emitted + 1)
    give_decode(id, static_cast<std::uint32_t>(rank));
}

void Cluster::push_local(std::uint32_t id) {
  const RequestState& r = requests_[id];
  const std::size_t rank = r.prefill_rank - prefill_ranks_;
  if (!decode_up_[rank / decode_group_]) return;  // found when its loss is noticed
  decode_[rank / decode_group_].push_prompt(rank % decode_group_,
                                            {RequestId(id), r.hit, prompt_of(r) - r.hit});
}

RankReports::Snapshot Cluster::local_snapshot(std::size_t decode_rank) {
  const DecodeEngine& engine = decode_[decode_rank / decode_group_];
  const std::size_t at = decode_rank % decode_group_;
  const std::size_t view = prefill_ranks_ + decode_rank;
  return prefill_reports_.snapshot(
      view,
      {.seconds = engine.prompt_seconds(at) + loading_seconds_[view],
       .requests_waiting = static_cast<double>(engine.prompts(at)) + loading_requests_[view]},
      queue_.now());
}

}  // namespace penstock::sim
