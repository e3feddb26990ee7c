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

Status EmbeddedEngine::submit(EngineRequest request) {
  if (cache_ == nullptr) return engine_->submit(std::move(request));
  TRY_STATUS(engine_->check(request));
  std::shared_ptr<KvFetch> fetch = cache_->fetch(request);
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
  if (std::erase_if(waiting_, is_it) == 0) engine_->cancel(request);
}

bool EmbeddedEngine::has_work() const {
  return engine_->has_work() || (cache_ != nullptr && cache_->has_news());
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
  if (cache_ != nullptr) admit(outputs);
  const auto began = std::chrono::steady_clock::now();
  engine::StepOutputs step = engine_->step();
  if (cache_ != nullptr && step.stats.lone_prefill) {
    cache_->observe_prefill(*step.stats.lone_prefill, std::chrono::steady_clock::now() - began);
  }
  for (EngineOutput& output : step.outputs)
    outputs.push_back(std::move(output));
}

EngineLoad EmbeddedEngine::load() const {
  EngineLoad load = engine_->load();
  load.waiting += static_cast<std::uint32_t>(waiting_.size());
  if (cache_ != nullptr) load.cache = cache_->counters();
  return load;
}

}  // namespace penstock
