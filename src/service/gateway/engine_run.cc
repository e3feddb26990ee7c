#include "service/gateway/engine_run.h"

#include <fmt/format.h>
#include <algorithm>
#include <iterator>
#include <utility>

namespace penstock::gateway {
namespace {

// One merged output and one error per choice; 128 is the limit of `n`.
constexpr std::size_t kQueueMax = 256;

}  // namespace

EngineRun::EngineRun(GatewayContext& context, Instant deadline)
    : context_(context), deadline_(deadline), outputs_(context.clock, kQueueMax) {}

EngineRun::~EngineRun() {
  release();
}

void EngineRun::end(Running& leg) {
  if (std::exchange(leg.open, false)) context_.engines.forget(leg.id);
  leg.permit.give_back();
}

void EngineRun::release() {
  for (Running& leg : legs_)
    end(leg);
}

Task<Result<Placement>> EngineRun::place(PlacementRequest request) {
  cached_ = request.cached;
  const Instant give_up =
      std::min(deadline_, context_.clock.now() + context_.limits.worker_wait_max);
  while (true) {
    if (abandoned_) co_return std::unexpected(*abandoned_);
    auto placement = gateway::place(context_.engines.workers(), context_.ledger, request,
                                    context_.limits.placement);
    if (placement || context_.clock.now() >= give_up) co_return placement;
    co_await Sleep(context_.clock, context_.limits.worker_wait_step);
  }
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
  if (!placement.prefill) return submit_leg(placement.decode, {}, placement.fresh);
  HandoffRef handoff;
  handoff.leg = Leg::kPrefill;
  handoff.id = context_.new_handoff_id
                   ? context_.new_handoff_id()
                   : HandoffId{context_.rng.next_u64(), context_.rng.next_u64()};
  TRY_STATUS(submit_leg(*placement.prefill, handoff, placement.fresh));
  handoff.leg = Leg::kDecode;
  handoff.source = placement.transport;
  handoff.source_epoch = placement.epoch;
  return submit_leg(placement.decode, handoff, 0);
}

Status EngineRun::submit_leg(RankId rank, const HandoffRef& handoff, std::uint32_t fresh) {
  Running& leg = at(handoff.leg);
  leg.id = RequestId(context_.rng.next_u64());
  EngineRequest request = request_;
  request.id = leg.id;
  request.rank = rank.rank;
  request.handoff = handoff;
  TRY_STATUS(context_.engines.submit(
      rank.worker, std::move(request),
      [this, which = handoff.leg](EngineOutput output) { receive(which, std::move(output)); }));
  leg.open = true;
  leg.permit = RankPermit(context_.ledger, rank, {fresh, 1});
  return {};
}

void EngineRun::receive(Leg leg, EngineOutput output) {
  Running& running = at(leg);
  if (output.error || output.finish == FinishReason::kCancelled) {
    running.open = false;  // it was the last
    lost(leg, std::move(output));
    return;
  }
  if (!output.tokens.empty()) running.permit.prompt_done();
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
  const auto tokens = static_cast<std::uint32_t>(request_.prompt->size() + request_.emitted.size());
  CO_TRY(const Placement placement, co_await place({request_.model, tokens, cached_}));
  moved_to_ = placement.reason;
  co_return submit(placement, std::move(request_));
}

void EngineRun::abandon(Error why) {
  if (!abandoned_) abandoned_ = std::move(why);
  release();
  outputs_.close();
}

void EngineRun::stop() {
  release();
}

}  // namespace penstock::gateway
