// What a suite has run, in memory and, when a file is named, there too: an interrupted suite goes
// on with the file, and the parts of a long one can be run one by one.
//
// The file is text: a heading that names what the runs depend on and their memory does not (the
// program, the trace, the profile, options), then one line a run. A line that was cut off is no
// run.
//
// Invariants: one process at a time has the file. Errors: kConflict for a file of another program,
// trace, profile or options, and for one in use; kIo. Concurrency: memory() may be used from
// several threads; the object stays where it is while somebody uses it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/result.h"
#include "io/files/files.h"
#include "sim/run_memory.h"

namespace penstock {

class KeptRuns {
 public:
  // An empty path: in memory only. `made_by` is one line.
  static Result<std::unique_ptr<KeptRuns>> open(const std::string& path,
                                                const std::string& made_by);
  sim::RunMemory memory();
  std::size_t size() const { return runs_.size(); }
  // What came of writing the file.
  Status written() const { return written_; }

 private:
  void keep(const std::string& key, const std::string& value);

  std::string path_;
  std::optional<FileLock> lock_;
  std::mutex mutex_;
  std::map<std::string, std::string> runs_;
  Status written_;
};

}  // namespace penstock
