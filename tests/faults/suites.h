// The parts of the fault suite; each fails by fail_suite() and returns otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::faults {

struct SuiteOptions {
  std::uint64_t seed = 0;
  std::uint32_t rounds = 20;
  std::chrono::milliseconds margin{2000};  // beyond a call's own time-out
  std::string folder;
};

struct SuiteResult {
  std::uint32_t passed = 0;
  std::uint32_t skipped = 0;
};

SuiteResult run_kills(const SuiteOptions& options);
SuiteResult run_scenes(const SuiteOptions& options);
SuiteResult run_flips(const SuiteOptions& options);

// The main function of a process that holds a lease: SOCKET SECRET FAMILY BLOCKS. It writes the
// number of blocks that it holds, waits for a byte, loads and compares them, and writes how many
// were right.
int run_holder(const std::vector<std::string>& arguments);

}  // namespace penstock::faults
