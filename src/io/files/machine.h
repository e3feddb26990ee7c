// What this process may use of the machine: cores, memory, disk. Containers' limits count.
//
// Cores come from the affinity mask and the control group's quota; memory from /proc/meminfo and
// the control group's limit; the smaller one wins. Errors: what cannot be read is 0, never a
// failure. Concurrency: any thread; reads files each time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace penstock {

struct Machine {
  std::string cpu_model;
  std::uint32_t cores = 1;  // usable by this process, at least 1
  Bytes memory_total;
  Bytes memory_available;
  std::uint64_t huge_pages_free = 0;      // of 2 MiB, reserved
  std::string transparent_huge_pages;     // "always", "madvise", "never" or empty
  std::vector<std::string> cpu_features;  // as the kernel names them: "avx2", "avx512f", ...
};

Machine read_machine();

struct DiskSpace {
  Bytes total;
  Bytes available;  // to this user
};
// Of the file system that holds `path`.
Result<DiskSpace> disk_space(const std::string& path);

// The path of the running executable; empty when it cannot be told.
std::string executable_path();

}  // namespace penstock
