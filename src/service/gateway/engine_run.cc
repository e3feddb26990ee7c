#include "service/gateway/engine_run.h"

#include <fmt/format.h>
#include <algorithm>
#include <iterator>
#include <utility>

namespace penstock::gateway {
namespace {

// One merged output and one error per choice; 128 is the limit of `n`.
constexpr std::size_t kQueueMax = 256;

// That holds all of the hit, as far as is known.
std::optional<KvTier> only_tier(const PlacementRequest& request) {
  if (request.cached_on_disk + request.cached_remotely == 0) return KvTier::kHost;
  if (request.cached_on_disk == request.cached) return KvTier::kDisk;
  if (request.cached_remotely == request.cached) return KvTier::kCluster;
  return std::nullopt;
}

}  // namespace

EngineRun::EngineRun(GatewayContext& context, Instant deadline, std::string request_id)
    : context_(context),
      deadline_(deadline),
      request_id_(std::move(request_id)),
      outputs_(context.clock, kQueueMax) {}

EngineRun::~EngineRun() {
  release();
}

void EngineRun::end(Running& leg) {
  if (std::exchange(leg.open, false)) context_.engines.forget(leg.id);
  leg.permit.give_back();
  context_.admission.room_may_have_come();
}

void EngineRun::release() {
  for (Running& leg : legs_)
    end(leg);
}

Task<Result<ModelDescription>> EngineRun::find_model(std::string_view model) {
  const Instant give_up =
      std::min(deadline_, context_.clock.now() + context_.limits.worker_wait_max);
  while (true) {
    if (abandoned_) co_return std::unexpected(*abandoned_);
    const auto* const served = served_model(context_.engines.workers(), model);
    if (served != nullptr) co_return *served;
    if (context_.clock.now() >= give_up) {
      PlacementRequest nobody;
      nobody.model = model;
      auto placed = context_.placer.place(context_.placement_state(), nobody);
      ENSURE(!placed);
      co_return std::unexpected(std::move(placed).error());
    }
    co_await Sleep(context_.clock, context_.limits.worker_wait_step);
  }
}

Task<std::expected<void, Admission::Refusal>> EngineRun::enter(AdmissionTicket ticket,
                                                               PlacementRequest request) {
  const Instant began = context_.clock.now();
  waiting_id_ = ticket.id = RequestId(context_.rng.next_u64());
  ticket.deadline = deadline_;
  const Placer::Work work = context_.placer.work(context_.placement_state(), request);
  ticket.work_seconds = work.total;
  ticket.prompt_seconds = work.prompt;
  ticket.cold_prompt_seconds = work.cold_prompt;
  ticket.ranks = work.ranks;
  ticket.has_room = [this, request] {
    return context_.placer.has_room(context_.placement_state(), request);
  };
  auto entered = co_await context_.admission.enter(std::move(ticket));
  queued_ = context_.clock.now() - began;
  waiting_id_ = {};
  if (abandoned_) co_return std::unexpected(Admission::Refusal{*abandoned_, {}});
  if (!entered) co_return std::unexpected(std::move(entered).error());
  slot_ = std::move(*entered);
  co_return std::expected<void, Admission::Refusal>();
}

Task<Result<Placement>> EngineRun::place(PlacementRequest request) {
  wanted_ = request;
  const Instant give_up =
      std::min(deadline_, context_.clock.now() + context_.limits.worker_wait_max);
  while (true) {
    if (abandoned_) co_return std::unexpected(*abandoned_);
    auto placement = context_.placer.place(context_.placement_state(), request);
    if (placement) explain();
    if (placement || context_.clock.now() >= give_up) co_return placement;
    co_await Sleep(context_.clock, context_.limits.worker_wait_step);
  }
}

// Right after the placer has decided.
void EngineRun::explain() {
  if (!context_.keep_explanation || request_id_.empty()) return;
  PlacementExplanation explanation = context_.placer.explain();
  explanation.request_id = request_id_;
  explanation.placement = moves_;
  if (moves_ == 0) explanation.queued = queued_;
  context_.keep_explanation(std::move(explanation));
}

Status EngineRun::submit(const Placement& placement, EngineRequest request) {
  request_ = std::move(request);
  if (received_.empty()) received_.assign(request_.sampling.choices, 0);
  placed_at_ = received_[0];
  Status sent = submit_legs(placement);
  if (sent) return sent;
  release();
  if (sent.error().code != ErrorCode::kUnavailable) return sent;
  // The worker is gone or drains, and the view it was chosen from does not say so yet.
  refused_ = true;
  EngineOutput lost;
  lost.finish = FinishReason::kError;
  lost.error = std::move(sent).error();
  queue(std::move(lost));
  return {};
}

Status EngineRun::submit_legs(const Placement& placement) {
  if (!placement.prefill) {
    return submit_leg(placement.decode, {},
                      {placement.fresh, 1, placement.kv_tokens, placement.compute, placement.load});
  }
  HandoffRef handoff;
  handoff.leg = Leg::kPrefill;
  handoff.id = context_.new_handoff_id
                   ? context_.new_handoff_id()
                   : HandoffId{context_.rng.next_u64(), context_.rng.next_u64()};
  TRY_STATUS(submit_leg(
      *placement.prefill, handoff,
      {placement.fresh, 1, placement.prompt_kv_tokens, placement.compute, placement.load}));
  handoff.leg = Leg::kDecode;
  handoff.source = placement.transport;
  handoff.source_epoch = placement.epoch;
  return submit_leg(placement.decode, handoff, {0, 1, placement.kv_tokens});
}

Status EngineRun::submit_leg(RankId rank, const HandoffRef& handoff,
                             const RankLedger::Entry& part) {
  Running& leg = at(handoff.leg);
  leg.id = RequestId(context_.rng.next_u64());
  leg.submitted_at = context_.clock.now();
  leg.alone = part.prompt_tokens > 0 && is_idle(rank);
  EngineRequest request = request_;
  request.id = leg.id;
  request.rank = rank.rank;
  request.handoff = handoff;
  TRY_STATUS(context_.engines.submit(
      rank.worker, std::move(request),
      [this, which = handoff.leg](EngineOutput output) { receive(which, std::move(output)); }));
  leg.open = true;
  leg.permit = RankPermit(context_.ledger, rank, part);
  return {};
}

const WorkerView* EngineRun::worker_of(RankId rank) const {
  for (const WorkerView& worker : context_.engines.workers())
    if (worker.description.id == rank.worker && rank.rank < worker.loads.size()) return &worker;
  return nullptr;
}

bool EngineRun::is_idle(RankId rank) const {
  const WorkerView* const worker = worker_of(rank);
  if (worker == nullptr || context_.ledger.of(rank).requests > 0) return false;
  const EngineLoad& load = worker->loads[rank.rank];
  return load.running + load.waiting == 0 && load.prompt_tokens_waiting == 0;
}

// The first token of a prompt that nothing else was computed beside says what prompts cost; with a
// hit, what loading its KV added to the rest's computation.
void EngineRun::learn(Running& leg, const EngineOutput& output) {
  if (!std::exchange(leg.alone, false)) return;
  const RankId rank = leg.permit.rank();
  const WorkerView* const worker = worker_of(rank);
  if (worker == nullptr || context_.ledger.of(rank).requests != 1) return;
  const auto computed =
      static_cast<std::int64_t>(request_.prompt->size() + request_.emitted.size());
  const Duration took = context_.clock.now() - leg.submitted_at;
  const Tokens cached(output.cached_tokens);
  if (cached.value == 0)
    return context_.costs.prompt_computed(*worker, request_.model, Tokens(computed), took);
  const auto tier = only_tier(wanted_);
  if (!tier || output.cached_tokens != wanted_.cached) return;
  context_.costs.prefix_loaded(*worker, request_.model, cached, *tier, Tokens(computed) - cached,
                               took);
}

void EngineRun::receive(Leg leg, EngineOutput output) {
  Running& running = at(leg);
  if (output.error || output.finish == FinishReason::kCancelled) {
    running.open = false;  // it was the last
    lost(leg, std::move(output));
    return;
  }
  if (!output.tokens.empty()) {
    learn(running, output);
    running.permit.prompt_done();
    context_.admission.room_may_have_come();
  }
  // The decode leg is past what the prefill leg can say: it had the KV, or computed it.
  const std::size_t reached = output.index + output.tokens.size();
  if (leg == Leg::kDecode && output.choice == 0 && reached > placed_at_ + 1U)
    end(at(Leg::kPrefill));
  if (output.finish == FinishReason::kHandedOff) {
    output.finish.reset();
    // With several choices each says so.
    if (output.choice + 1 == request_.sampling.choices) {
      running.open = false;
      running.permit.give_back();
      context_.admission.room_may_have_come();
    }
  } else if (output.finish && request_.sampling.choices == 1) {
    running.open = false;
    release();
  }
  if (trim(output)) queue(std::move(output));
}

// A leg has failed. The prefill leg matters until its first token has come.
void EngineRun::lost(Leg leg, EngineOutput output) {
  at(leg).permit.give_back();
  context_.admission.room_may_have_come();
  if (leg == Leg::kPrefill && received_[0] > placed_at_ && at(Leg::kDecode).open) return;
  release();
  if (!output.error) {
    output.finish = FinishReason::kError;
    output.error = Error{ErrorCode::kUnavailable, "the worker dropped the request", {}, {}};
  }
  queue(std::move(output));
}

bool EngineRun::trim(EngineOutput& output) {
  if (output.choice >= received_.size()) return false;
  std::uint32_t& received = received_[output.choice];
  const auto end = output.index + static_cast<std::uint32_t>(output.tokens.size());
  if (!output.tokens.empty() && output.index > received) {
    release();
    output.finish = FinishReason::kError;
    output.error = Error{ErrorCode::kInternal,
                         fmt::format("choice {} goes on at token {} after {} (report this)",
                                     output.choice, output.index, received),
                         {},
                         {}};
    output.tokens.clear();
    return true;
  }
  if (end > received) {
    output.tokens.erase(output.tokens.begin(), output.tokens.begin() + (received - output.index));
    output.index = received;
    received = end;
    return true;
  }
  output.tokens.clear();
  return output.finish.has_value() || output.cached_tokens > 0;
}

void EngineRun::queue(EngineOutput output) {
  for (EngineOutput& queued : outputs_.items()) {
    const bool merges =
        queued.choice == output.choice && !queued.finish && !queued.error && !output.error;
    if (!merges) continue;
    std::ranges::move(output.tokens, std::back_inserter(queued.tokens));
    queued.cached_tokens = std::max(queued.cached_tokens, output.cached_tokens);
    queued.finish = output.finish;
    return;
  }
  // A worker can't fill the queue within the protocol; what it sends beyond is dropped, and the
  // request's deadline ends it.
  static_cast<void>(outputs_.push(std::move(output)));
}

Task<Result<std::optional<EngineOutput>>> EngineRun::next(Instant wake_at) {
  while (true) {
    const Instant until = std::min(wake_at, deadline_);
    std::optional<EngineOutput> output = co_await outputs_.pop(until);
    if (abandoned_) co_return std::unexpected(*abandoned_);
    if (!output) {
      if (context_.clock.now() >= deadline_) {
        co_return fail(ErrorCode::kDeadlineExceeded,
                       "the request took longer than the limit for one request (request_time_max)");
      }
      co_return std::nullopt;
    }
    if (output->error) {
      CO_TRY_STATUS(co_await move_on(*output->error));
      continue;
    }
    emitted_any_ = emitted_any_ || !output->tokens.empty();
    if (request_.sampling.choices == 1) {
      for (const OutputToken& token : output->tokens)
        request_.emitted.push_back(token.token);
    }
    co_return output;
  }
}

// The worker died or refused: place the request again, or pass the error on.
Task<Status> EngineRun::move_on(const Error& why) {
  const bool resumable = request_.sampling.choices == 1 || !emitted_any_;
  if (why.code != ErrorCode::kUnavailable) co_return std::unexpected(why);
  if (!resumable || moves_ >= context_.limits.moves_max) {
    // Where the worker was and how it failed is for the log, not for the client.
    co_return fail(ErrorCode::kUnavailable,
                   "the worker that served this request failed; try again");
  }
  ++moves_;
  // For the shard to hear of it, or the same worker would be chosen again.
  if (std::exchange(refused_, false)) {
    co_await Sleep(context_.clock, context_.limits.worker_wait_step);
  }
  PlacementRequest wanted = wanted_;
  wanted.model = request_.model;
  wanted.tokens = static_cast<std::uint32_t>(request_.prompt->size() + request_.emitted.size());
  CO_TRY(const Placement placement, co_await place(wanted));
  moved_to_ = placement.reason;
  co_return submit(placement, std::move(request_));
}

void EngineRun::abandon(Error why) {
  if (!abandoned_) abandoned_ = std::move(why);
  stop();
  // Either wakes the task that waits, which may end this run.
  if (waiting_id_ != RequestId()) return context_.admission.leave(waiting_id_);
  outputs_.close();
}

void EngineRun::stop() {
  release();
  slot_.give_back();
}

}  // namespace penstock::gateway
