#include "io/control/frame_checker.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace penstock::control {
namespace {

std::unexpected<Error> broken(std::string message) {
  return fail(ErrorCode::kDataLoss, std::move(message));
}

}  // namespace

Status FrameChecker::opened(const EngineRequest& request) {
  const auto model = std::ranges::find(description_.models, request.model, &ModelDescription::name);
  if (model == description_.models.end()) {
    return fail(ErrorCode::kModelNotFound,
                fmt::format("worker {} does not serve model {}", description_.name, request.model),
                "model");
  }
  const std::uint32_t choices = request.sampling.choices;
  if (!request.prompt || choices == 0) {
    return fail(ErrorCode::kInvalidArgument, "a request needs a prompt and a choice");
  }
  Open open;
  open.shape = {choices, model->vocab_size, request.sampling.top_logprobs,
                request.prompt->size() + request.emitted.size()};
  open.is_prefill = request.handoff.leg == Leg::kPrefill;
  open.finished.assign(choices, false);
  open.tokens_left.assign(choices, request.sampling.max_tokens);
  open.next_index.assign(choices, 0);
  open.next_index[0] = static_cast<std::uint32_t>(request.emitted.size());
  open.tokens_left[0] -= std::min(open.tokens_left[0], open.next_index[0]);
  open.unfinished = choices;
  if (!open_.emplace(request.id, std::move(open)).second) {
    return fail(ErrorCode::kConflict,
                fmt::format("request {} is open already on this worker", request.id.value));
  }
  return {};
}

void FrameChecker::forgotten(RequestId request) {
  if (const auto found = open_.find(request); found != open_.end()) found->second.forgotten = true;
}

Result<std::vector<EngineOutput>> FrameChecker::check(const wire::WorkerFrame& frame) {
  if (frame.has_hello() == greeted_) {
    return broken(greeted_ ? "a second hello" : "the first frame has no hello");
  }
  if (!greeted_) {
    TRY(description_, decode(frame.hello()));
    greeted_ = true;
  }
  TRY_STATUS(check_loads(frame));
  draining_ = frame.draining();
  if (frame.has_handoffs()) {
    TRY(handoffs_, decode(frame.handoffs()));
  }
  TRY_STATUS(check_experts(frame));
  std::vector<EngineOutput> outputs;
  outputs.reserve(static_cast<std::size_t>(frame.outputs_size()));
  for (const wire::Output& output : frame.outputs())
    TRY_STATUS(check_output(output, outputs));
  return outputs;
}

Status FrameChecker::check_loads(const wire::WorkerFrame& frame) {
  if (frame.step() < step_) {
    return broken(fmt::format("steps fell from {} to {}", step_, frame.step()));
  }
  step_ = frame.step();
  if (frame.loads().empty()) return {};
  TRY(auto loads, decode(frame.loads(), description_.models.size()));
  if (!loads_.empty() && loads.size() != loads_.size()) {
    return broken(fmt::format("the worker had {} ranks and now {}", loads_.size(), loads.size()));
  }
  for (std::size_t rank = 0; rank < loads_.size(); ++rank) {
    if (loads[rank].step < loads_[rank].step) {
      return broken(fmt::format("steps of rank {} fell from {} to {}", rank, loads_[rank].step,
                                loads[rank].step));
    }
  }
  loads_ = std::move(loads);
  return {};
}

Status FrameChecker::check_experts(const wire::WorkerFrame& frame) {
  if (!frame.experts().empty()) {
    if (static_cast<std::size_t>(frame.experts_size()) != loads_.size()) {
      return broken(fmt::format("expert loads of {} ranks, there are {}", frame.experts_size(),
                                loads_.size()));
    }
    TRY(experts_, decode(frame.experts()));
  }
  for (const wire::ExpertAnswer& answer : frame.expert_answers()) {
    if (expert_queries_.erase(answer.number()) == 0)
      return broken(
          fmt::format("an answer to expert query {}, which nobody asked", answer.number()));
    TRY(auto report, decode(answer));
    expert_answers_.push_back({answer.number(), std::move(report)});
  }
  return {};
}

Status FrameChecker::check_output(const wire::Output& output, std::vector<EngineOutput>& outputs) {
  const auto found = open_.find(RequestId(output.request_id()));
  if (found == open_.end()) {
    return broken(fmt::format("output for request {}, which is not open", output.request_id()));
  }
  Open& open = found->second;
  auto decoded = decode(output, open.shape);
  if (!decoded) {
    return std::unexpected(
        std::move(decoded).error().within(fmt::format("request {}", output.request_id())));
  }
  const std::uint32_t choice = decoded->choice;
  // An error speaks of the whole request, so it may name a choice that is over.
  if (open.finished[choice] && decoded->finish != FinishReason::kError) {
    return broken(
        fmt::format("request {}: choice {} goes on after its finish", output.request_id(), choice));
  }
  if (decoded->finish == FinishReason::kHandedOff && !open.is_prefill) {
    return broken(fmt::format("request {}: choice {} is handed off, but it is no prefill leg",
                              output.request_id(), choice));
  }
  if (decoded->tokens.size() > open.tokens_left[choice]) {
    return broken(fmt::format("request {}: choice {} has more tokens than were asked for",
                              output.request_id(), choice));
  }
  if (!decoded->tokens.empty() && decoded->index != open.next_index[choice]) {
    return broken(fmt::format("request {}: choice {} goes on at token {} instead of {}",
                              output.request_id(), choice, decoded->index,
                              open.next_index[choice]));
  }
  open.next_index[choice] += static_cast<std::uint32_t>(decoded->tokens.size());
  open.tokens_left[choice] -= static_cast<std::uint32_t>(decoded->tokens.size());
  bool over = false;
  if (decoded->finish) {
    open.finished[choice] = true;
    over = --open.unfinished == 0 || decoded->finish == FinishReason::kError;
  }
  if (!open.forgotten) outputs.push_back(std::move(*decoded));
  if (over) open_.erase(found);
  return {};
}

}  // namespace penstock::control
