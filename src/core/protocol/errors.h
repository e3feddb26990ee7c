// Error -> an error object of OpenAI's or Anthropic's API, status and headers.
//
// Invariants: OpenAI's four keys (message, type, param, code) are always there; 429, 503 and 529
// carry retry-after when a retry helps and x-should-retry either way, because client libraries
// retry by status alone otherwise (a spent budget would be hammered). Errors: none. Concurrency:
// pure. Source: facts/api.md 3.1, 3.4 and 3.6.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace penstock::protocol {

enum class ErrorShape : std::uint8_t { kOpenAi, kAnthropic };

struct ErrorAnswer {
  int status = 500;
  std::string body;  // JSON
  std::vector<std::pair<std::string, std::string>> headers;
};

// {"error":{"message":...,"type":...,"param":...,"code":...}}
std::string error_object(const Error& error);

// {"type":"error","error":{"type":...,"message":...},"request_id":...}; what is too much for us now
// is an overloaded_error.
std::string anthropic_error_object(const Error& error, std::string_view request_id);

// The complete answer in OpenAI's shape; `retry_after` is rounded up to whole seconds and used
// where the code advises to retry after a delay.
ErrorAnswer error_answer(const Error& error, Duration retry_after = std::chrono::seconds(1));
// In either shape. Anthropic's API says 529 where others say 503.
ErrorAnswer error_answer(const Error& error, ErrorShape shape, std::string_view request_id,
                         Duration retry_after = std::chrono::seconds(1));

}  // namespace penstock::protocol
