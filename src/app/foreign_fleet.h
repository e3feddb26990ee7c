// ForeignFleet: the engines of others that one gateway process has now, with their numbers and
// keys, and what they hold.
//
// The list is what the options and the engines file say. reread() looks whether the file has
// changed: an engine whose line is the same stays, another is a new one with a new number; a file
// with a mistake changes nothing. Keys are read when an engine is added, so a changed key file
// counts once the engine's line changes.
//
// Errors: reread() gives the file's mistake once. Concurrency: the main thread; prefixes() and
// switches() from any.
#pragma once

#include <string>
#include <vector>

#include "app/engine_prefixes.h"
#include "app/engine_switches.h"
#include "app/foreign_engines.h"

namespace penstock {

struct FleetEngine {
  WorkerId id;
  ForeignEngine what;
  std::string key;
};

class ForeignFleet {
 public:
  explicit ForeignFleet(const Options& options);

  struct Change {
    std::vector<FleetEngine> added;
    std::vector<WorkerId> removed;
  };
  // The engines to begin with.
  Status load();
  // Empty when nothing has changed.
  Result<Change> reread();

  const std::vector<FleetEngine>& engines() const { return engines_; }
  EnginePrefixes& prefixes() { return prefixes_; }
  OperatorSwitches& switches() { return switches_; }

 private:
  Result<Change> change_to(const std::vector<ForeignEngine>& wanted);

  const Options& options_;
  const std::string file_;  // empty: none
  EnginePrefixes prefixes_;
  OperatorSwitches switches_;
  std::vector<FleetEngine> engines_;
  std::uint32_t next_id_ = 1;
  std::string seen_;  // of the file
};

}  // namespace penstock
