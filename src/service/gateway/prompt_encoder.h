// PromptEncoder: spans to token ids for one shard, without ever stalling it.
//
// Spans are looked up in the shard's span cache (agents resend the same hundred kilobytes at every
// turn). What is left is encoded at once when it is short, and on the compute
// pool when it is long, so that other requests of the shard go on meanwhile.
//
// Invariants: the ids are those of Tokenizer::encode(spans), cached or not.
// Errors: as Tokenizer::encode; kOverloaded when the pool's queue is full.
// Concurrency: one per shard, shard thread only.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "base/task.h"
#include "core/prompt/span_cache.h"
#include "core/prompt/tokenizer.h"
#include "domain/tokens.h"
#include "port/clock.h"
#include "port/compute_pool.h"

namespace penstock::gateway {

class PromptEncoder {
 public:
  // `secret` keys the span cache.
  PromptEncoder(Clock& clock, ComputePool& pool, std::span<const std::uint8_t, 32> secret)
      : clock_(clock), pool_(pool), cache_(secret) {}

  Task<Result<TokenIds>> encode(const Tokenizer& tokenizer, std::vector<PromptSpan> spans);
  const SpanCache& cache() const { return cache_; }

 private:
  // About 1 ms of encoding on the shard's thread at most.
  static constexpr std::size_t kInlineBytesMax = std::size_t{16} << 10;

  Clock& clock_;
  ComputePool& pool_;
  SpanCache cache_;
};

}  // namespace penstock::gateway
