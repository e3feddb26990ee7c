#include "service/gateway/engine_run.h"

#include <fmt/format.h>
#include <algorithm>
#include <iterator>

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

void EngineRun::release() {
  if (submitted_) context_.engines.forget(request_.id);
  submitted_ = false;
}

Task<Result<Placement>> EngineRun::place(std::string_view model) {
  const Instant give_up =
      std::min(deadline_, context_.clock.now() + context_.limits.worker_wait_max);
  while (true) {
    if (abandoned_) co_return std::unexpected(*abandoned_);
    auto placement = pick_worker(context_.engines.workers(), model);
    if (placement || context_.clock.now() >= give_up) co_return placement;
    co_await Sleep(context_.clock, context_.limits.worker_wait_step);
  }
}

Status EngineRun::submit(const Placement& placement, EngineRequest request) {
  request_ = std::move(request);
  request_.id = RequestId(context_.rng.next_u64());
  TRY_STATUS(context_.engines.submit(placement.worker, request_,
                                     [this](EngineOutput output) { receive(std::move(output)); }));
  submitted_ = true;
  return {};
}

void EngineRun::receive(EngineOutput output) {
  for (EngineOutput& queued : outputs_.items()) {
    const bool merges = queued.choice == output.choice && !queued.finish && !output.error;
    if (!merges) continue;
    std::ranges::move(output.tokens, std::back_inserter(queued.tokens));
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
  submitted_ = false;  // an error output is the last one
  const bool resumable = request_.sampling.choices == 1 || !emitted_any_;
  if (why.code != ErrorCode::kUnavailable) co_return std::unexpected(why);
  if (!resumable || moves_ >= context_.limits.moves_max) {
    // Where the worker was and how it failed is for the log, not for the client.
    co_return fail(ErrorCode::kUnavailable,
                   "the worker that served this request failed; try again");
  }
  ++moves_;
  CO_TRY(const Placement placement, co_await place(request_.model));
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
