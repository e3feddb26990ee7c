#include "io/embedded/embedded_engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace penstock {

Status EmbeddedEngine::connect(KvConnectorOptions options) {
  TRY(cache_, KvConnector::open(std::move(options), *engine_, [this] {
        if (waker_) waker_();
      }));
  return {};
}

void EmbeddedEngine::hand_off(HandoffPort& port, HandoffLegs::Log log) {
  legs_ = std::make_unique<HandoffLegs>(
      *engine_, port, [this](const EngineRequest& request) { return fetch(request); },
      [this](std::shared_ptr<KvFetch> fetched) { return cache_->prefix(std::move(fetched)); },
      std::move(log));
}

void EmbeddedEngine::on_handoff_news() {
  legs_->on_news();
  if (waker_) waker_();
}

std::shared_ptr<KvFetch> EmbeddedEngine::fetch(const EngineRequest& request) {
  return cache_ == nullptr ? nullptr : cache_->fetch(request, prefill_.coefficients());
}

Status EmbeddedEngine::submit(EngineRequest request) {
  if (cache_ == nullptr && request.handoff.leg == Leg::kWhole)
    return engine_->submit(std::move(request));
  TRY_STATUS(engine_->check(request));
  if (request.handoff.leg != Leg::kWhole) {
    if (legs_ == nullptr) {
      return fail(ErrorCode::kInvalidArgument, "this worker takes no part in handoffs", "handoff");
    }
    if (request.handoff.leg == Leg::kDecode) {
      auto remote = legs_->remote(request);
      return engine_->submit(std::move(request), std::move(remote));
    }
    legs_->announce(request);
  }
  std::shared_ptr<KvFetch> fetch = this->fetch(request);
  if (fetch == nullptr) return engine_->submit(std::move(request));
  if (fetch->final()) {
    auto prefix = cache_->prefix(std::move(fetch));
    return engine_->submit(std::move(request), std::move(prefix));
  }
  waiting_.push_back({std::move(request), std::move(fetch)});
  return {};
}

void EmbeddedEngine::cancel(RequestId request) {
  const auto is_it = [&](const Waiting& w) { return w.request.id == request; };
  if (std::erase_if(waiting_, is_it) == 0) {
    engine_->cancel(request);
  } else if (legs_ != nullptr) {
    legs_->ended_early(request);
  }
}

bool EmbeddedEngine::has_work() const {
  return engine_->has_work() || (cache_ != nullptr && cache_->has_news()) ||
         (legs_ != nullptr && legs_->has_news());
}

void EmbeddedEngine::admit(std::vector<EngineOutput>& outputs) {
  cache_->tend();
  for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
    if (!waiting->fetch->final()) {
      ++waiting;
      continue;
    }
    const RequestId id = waiting->request.id;
    auto prefix = cache_->prefix(std::move(waiting->fetch));
    if (Status taken = engine_->submit(std::move(waiting->request), std::move(prefix)); !taken) {
      EngineOutput refusal;
      refusal.request = id;
      refusal.finish = FinishReason::kError;
      refusal.error = std::move(taken).error();
      outputs.push_back(std::move(refusal));
    }
    waiting = waiting_.erase(waiting);
  }
}

void EmbeddedEngine::step(std::vector<EngineOutput>& outputs) {
  const std::size_t first = outputs.size();
  if (legs_ != nullptr) legs_->tend();
  if (cache_ != nullptr) admit(outputs);
  const auto began = std::chrono::steady_clock::now();
  engine::StepOutputs step = engine_->step();
  if (const auto& pass = step.stats.lone_prefill) {
    prefill_.observe(Tokens(pass->context), Tokens(pass->fresh),
                     std::chrono::steady_clock::now() - began);
  }
  for (EngineOutput& output : step.outputs)
    outputs.push_back(std::move(output));
  if (legs_ == nullptr) return;
  for (const RequestId over : legs_->review(outputs, first))
    engine_->cancel(over);
}

EngineLoad EmbeddedEngine::load() const {
  EngineLoad load = engine_->load();
  load.waiting += static_cast<std::uint32_t>(waiting_.size());
  for (const Waiting& waiting : waiting_)
    load.prompt_tokens_waiting += waiting.request.prompt->size();
  load.prefill = prefill_.coefficients();
  if (cache_ != nullptr) load.cache = cache_->counters();
  return load;
}

}  // namespace penstock
