// The process's own metrics, read from /proc/self at each call: process_cpu_seconds_total,
// process_resident_memory_bytes, process_open_fds, process_max_fds, process_threads,
// process_start_time_seconds. What cannot be read is left out. Concurrency: any thread.
#pragma once

#include <string>

namespace penstock {

std::string process_exposition();

}  // namespace penstock
