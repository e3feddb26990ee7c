// OperatorSwitches: the engines that an operator drains.
// Concurrency: any thread.
#pragma once

#include <mutex>
#include <set>
#include <shared_mutex>

#include "service/foreign/engine_switches.h"

namespace penstock {

class OperatorSwitches final : public foreign::EngineSwitches {
 public:
  bool drains(WorkerId engine) const override {
    const std::shared_lock lock(mutex_);
    return draining_.contains(engine);
  }
  void set_drains(WorkerId engine, bool drains) override {
    const std::unique_lock lock(mutex_);
    if (drains) {
      draining_.insert(engine);
    } else {
      draining_.erase(engine);
    }
  }

 private:
  mutable std::shared_mutex mutex_;
  std::set<WorkerId> draining_;
};

}  // namespace penstock
