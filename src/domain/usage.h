// What a request consumed, exactly: the same numbers go to the client, the log and the ledger.
// Invariants: cached <= prompt; reasoning <= completion. Concurrency: values.
#pragma once

#include <cstdint>

namespace penstock {

struct Usage {
  std::uint64_t prompt_tokens = 0;
  std::uint64_t cached_tokens = 0;  // of the prompt: not computed
  std::uint64_t completion_tokens = 0;
  std::uint64_t reasoning_tokens = 0;  // of the completion

  bool operator==(const Usage&) const = default;
};

}  // namespace penstock
