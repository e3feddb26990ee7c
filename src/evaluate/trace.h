// Traces: what was asked of a service, as arrivals with lengths and the blocks their prompts share.
//
// Readers for three forms, one request a line: Mooncake's JSONL {timestamp ms, input_length,
// output_length, hash_ids}, the Azure CSV (TIMESTAMP, ContextTokens, GeneratedTokens), and our own
// JSONL {arrival_seconds, prompt_tokens, output_tokens, blocks?}. Requests whose prompts begin with
// the same blocks share that prefix.
//
// load() scales a trace the way the evaluation does: copies are laid over each other, each with
// block ids of its own and its own offset in time, and chained until the wanted duration is full; a
// broken number of copies takes that part of the last copy's conversations. Arrivals that share a
// tick are spread inside it.
//
// Invariants: arrivals never go back; a request with blocks has exactly enough of them for its
// prompt. Units: microseconds from the trace's start; tokens.
// Errors: kInvalidArgument with the line number and the reason; nothing is half-read.
// Concurrency: pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock::evaluate {

struct TraceRequest {
  std::int64_t arrival_us = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 1;
  std::uint32_t first_block = 0;  // index into Trace::blocks
  std::uint32_t block_count = 0;
};

struct Trace {
  std::vector<TraceRequest> requests;
  std::vector<std::uint64_t> blocks;
  std::int64_t block_tokens = 512;
  std::int64_t duration_us = 0;  // one tick after the last arrival
  std::int64_t tick_us = 0;      // how coarse its timestamps are; 0: not at all

  std::span<const std::uint64_t> blocks_of(const TraceRequest& request) const {
    return std::span(blocks).subspan(request.first_block, request.block_count);
  }
};

// Limits of a line that is believed.
inline constexpr std::int64_t kTraceTokensMax = 16'777'216;
inline constexpr std::size_t kTraceRequestsMax = 50'000'000;

Result<Trace> read_mooncake(std::string_view text);
Result<Trace> read_azure(std::string_view text);
Result<Trace> read_own(std::string_view text, std::int64_t block_tokens);
// Whichever of the three it is, by its first line. Own ones have blocks of 512 tokens.
Result<Trace> read_trace(std::string_view text);

// One arrival of a scaled trace.
struct Arrival {
  std::int64_t at_us = 0;
  std::uint32_t request = 0;  // index into Trace::requests
  std::uint32_t copy = 0;     // block ids of different copies are different
};

struct LoadOptions {
  double copies = 1;
  std::int64_t duration_us = 0;  // 0: the trace's own
  std::int64_t tick_us = 0;      // arrivals are spread over this; 0: as they are
  std::uint64_t seed = 1;
};

// Sorted by time, then copy and request. Empty for an empty trace.
std::vector<Arrival> scale(const Trace& trace, const LoadOptions& options);

// The block's id in that copy.
std::uint64_t block_in_copy(std::uint64_t block, std::uint32_t copy);

}  // namespace penstock::evaluate
