// Error -> OpenAI's error object, status and headers.
//
// Invariants: all four keys (message, type, param, code) are always there; 429 and 503 carry
// retry-after when a retry helps and x-should-retry either way, because client libraries retry by
// status alone otherwise (a spent budget would be hammered).
// Errors: none. Concurrency: pure. Source: facts/api.md 3.1 and 3.6.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace penstock::protocol {

struct ErrorAnswer {
  int status = 500;
  std::string body;  // JSON
  std::vector<std::pair<std::string, std::string>> headers;
};

// {"error":{"message":...,"type":...,"param":...,"code":...}}
std::string error_object(const Error& error);

// The complete answer; `retry_after` is rounded up to whole seconds and used where the code advises
// to retry after a delay.
ErrorAnswer error_answer(const Error& error, Duration retry_after = std::chrono::seconds(1));

}  // namespace penstock::protocol
