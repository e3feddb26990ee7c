// What one HTTP request was, took and became: the source of its log line, metrics and charge.
//
// Filled in on the way and handed to the observer once, when the answer is over, whatever its end.
// Invariants: never holds content of requests or answers, nor keys. Concurrency: a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/units.h"
#include "domain/usage.h"

namespace penstock {

struct RequestRecord {
  std::string request_id;
  std::string peer;
  std::string key_name;    // of the API key; empty when none was needed or it was not known
  bool key_given = false;  // a key came with it, known or not
  std::string method;
  std::string route;      // the route's pattern, never the raw path with a query
  std::string model;      // canonical name; empty when the request never got that far
  std::string alias;      // what the client called it, when that differs
  std::string placement;  // where it ran and why
  bool stream = false;
  int status = 0;       // 499 when the client went away first
  std::string outcome;  // finish reason of choice 0, or the error code's name
  // The gateway's limit that refused it, by configuration key; empty when none did.
  std::string limit = {};
  Usage usage;
  // Of the prompt, what the KV index promised; usage.cached_tokens is what was served.
  std::uint64_t expected_cached_tokens = 0;
  std::uint32_t moves = 0;        // how often it was placed again
  std::optional<Duration> queue;  // head received to submit
  std::optional<Duration> time_to_first_token;
  Duration total{};
};

}  // namespace penstock
