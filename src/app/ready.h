// How a child tells its supervisor that it is ready, or why it never will be.
//
// The supervisor starts a child with `--ready-fd N`, the writing end of a pipe. The child writes
// one JSON line and closes it: a ReadyReport when it serves (the worker: its socket listens and all
// models are loaded; the gateway: it accepts connections and a worker with every model is
// connected), or an Error when it gives up. End of file without a line means that the child died.
//
// Wire: {"ready":true,"port":8080,"facts":[["model nano","3.1 M parameters, context 4096"]]}
//       {"ready":false,"code":"io","message":"...","field":"..."}
// Errors: reading reports kDataLoss for anything else, kUnavailable for end of file.
// Concurrency: none; one call per process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock {

// Something a person should see at start: what it is and its value.
struct ReadyFact {
  std::string what;
  std::string value;

  bool operator==(const ReadyFact&) const = default;
};

struct ReadyReport {
  std::uint16_t port = 0;  // the one listened on; 0 from a worker
  std::vector<ReadyFact> facts;

  bool operator==(const ReadyReport&) const = default;
};

// Writes the line to `fd` and closes it; does nothing when fd is 0 (nobody waits). A supervisor
// that is gone is no error: the child ends with it anyway.
void report_ready(std::uint32_t fd, const ReadyReport& report);
void report_failure(std::uint32_t fd, const Error& error);
// Whether this process has told its supervisor why it fails, which then tells the person.
bool failure_was_reported();

// The line for a report, without the newline, and back.
std::string ready_line(const ReadyReport& report);
std::string failure_line(const Error& error);
Result<ReadyReport> parse_ready_line(std::string_view line);

}  // namespace penstock
