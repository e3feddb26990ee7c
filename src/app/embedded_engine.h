// EmbeddedEngine: engine::Engine as the worker's WorkerEngine.
// Concurrency: as WorkerEngine.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "service/worker/worker_engine.h"

namespace penstock {

class EmbeddedEngine final : public service::WorkerEngine {
 public:
  explicit EmbeddedEngine(std::unique_ptr<engine::Engine> engine) : engine_(std::move(engine)) {}

  const ModelDescription& description() const override { return engine_->description(); }
  Status submit(EngineRequest request) override { return engine_->submit(std::move(request)); }
  void cancel(RequestId request) override { engine_->cancel(request); }
  bool has_work() const override { return engine_->has_work(); }
  void step(std::vector<EngineOutput>& outputs) override {
    engine::StepOutputs step = engine_->step();
    for (EngineOutput& output : step.outputs)
      outputs.push_back(std::move(output));
  }
  EngineLoad load() const override { return engine_->load(); }

 private:
  std::unique_ptr<engine::Engine> engine_;
};

}  // namespace penstock
