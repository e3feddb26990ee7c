// Engines that fail, leave and come back.
#include <algorithm>

#include <fmt/format.h>

#include "sim/cluster_run.h"

namespace penstock::sim {

Status Cluster::plan_changes() {
  for (const EngineChange& what : options_.changes) {
    const std::size_t engines = what.pool == Pool::kPrefill ? prefill_.size() : decode_.size();
    if (what.engine >= engines)
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("simulate: a change of engine {}, and there are {}", what.engine, engines),
          "changes");
    queue_.call_at(Instant{} + what.at, [this, what] { change(what); });
  }
  return {};
}

void Cluster::change(const EngineChange& what) {
  mark(Mark::kChanged, static_cast<std::uint32_t>(what.engine),
       static_cast<std::uint64_t>(what.kind));
  const bool prefill = what.pool == Pool::kPrefill;
  std::vector<bool>& accepts = prefill ? prefill_accepts_ : decode_accepts_;
  std::vector<bool>& up = prefill ? prefill_up_ : decode_up_;
  switch (what.kind) {
    case ChangeKind::kDrain:
      accepts[what.engine] = false;
      return;
    case ChangeKind::kJoin:
      up[what.engine] = true;
      accepts[what.engine] = true;
      if (prefill) {
        report_prefill(what.engine);
      } else {
        report_decode(what.engine);
        place_homeless();
      }
      return;
    case ChangeKind::kFail:
      if (!up[what.engine]) return;
      ++report_.failures;
      up[what.engine] = false;
      if (prefill)
        fail_prefill(what.engine);
      else
        fail_decode(what.engine);
      return;
  }
}

// Nobody knows for a while; then what was there is placed again, in the order of arrival.
void Cluster::fail_prefill(std::size_t engine) {
  prefill_[engine].fail();
  caches_.lose(engine);
  queue_.call_at(queue_.now() + options_.notice, [this, engine] {
    prefill_accepts_[engine] = prefill_up_[engine];
    if (believed_) believed_->lose(engine);
    for (std::uint32_t id = 0; id < next_; ++id) {
      const RequestState& r = requests_[id];
      if (!r.computed && r.prefill_rank != kNoRank && r.prefill_rank / prefill_group_ == engine)
        place_anew(id, r.emitted);
    }
    report_prefill(engine);
  });
}

void Cluster::fail_decode(std::size_t engine) {
  for (const DecodeEngine::Lost& lost : decode_[engine].fail()) {
    RequestState& r = requests_[lost.id.value];
    const auto id = static_cast<std::uint32_t>(lost.id.value);
    std::erase(joined_, id);
    if (!r.waits) r.last_token = queue_.now();
    r.waits = true;
    r.emitted = trace_of(r).output_tokens - lost.left;
  }
  queue_.call_at(queue_.now() + options_.notice, [this, engine] {
    decode_accepts_[engine] = decode_up_[engine];
    for (std::uint32_t id = 0; id < next_; ++id) {
      RequestState& r = requests_[id];
      if (r.local && !r.computed && r.prefill_rank != kNoRank &&
          (r.prefill_rank - prefill_ranks_) / decode_group_ == engine) {  // its prompt is lost
        place_anew(id, r.emitted);
        continue;
      }
      if (r.finished || r.decode_rank == kNoRank || r.decode_rank / decode_group_ != engine)
        continue;
      if (!r.on_way) {  // its KV is lost
        place_anew(id, r.emitted);
        continue;
      }
      // Still being computed, or computed and its KV is where it was.
      on_way_[r.decode_rank] =
          on_way_[r.decode_rank] -
          Load{.requests_waiting = 1, .kv_tokens = static_cast<double>(prompt_of(r)) + growth()};
      r.decode_rank = kNoRank;
      r.on_way = false;
      if (r.computed) ++r.life;  // no earlier transfer arrives
      homeless_.push_back(id);
    }
    report_decode(engine);
    place_homeless();
  });
}

void Cluster::place_anew(std::uint32_t id, std::int64_t emitted) {
  RequestState& r = requests_[id];
  if (r.on_way)
    on_way_[r.decode_rank] =
        on_way_[r.decode_rank] -
        Load{.requests_waiting = 1, .kv_tokens = static_cast<double>(prompt_of(r)) + growth()};
  std::erase(homeless_, id);
  r.emitted = emitted;
  ++r.life;
  r.prefill_rank = kNoRank;
  r.decode_rank = kNoRank;
  r.on_way = false;
  r.started = false;
  r.computed = false;
  r.local = false;
  ++report_.placed_anew;
  queue_or_place(id);
}

}  // namespace penstock::sim
