// EngineSwitches: what an operator has said of engines, for all shards of a process.
// Concurrency: any thread.
#pragma once

#include "base/units.h"

namespace penstock::foreign {

class EngineSwitches {
 public:
  virtual ~EngineSwitches() = default;
  // It is to get no new requests; those it has end.
  virtual bool drains(WorkerId engine) const = 0;
  virtual void set_drains(WorkerId engine, bool drains) = 0;
};

}  // namespace penstock::foreign
