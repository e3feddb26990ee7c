// Ids for the blocks of a scaled trace, one after the other: copy times the trace's distinct
// blocks, plus the block's number among them. So a table of blocks is an array, and a prompt's
// blocks, which the trace mostly numbers in a row, lie side by side in it.
//
// Invariants: as evaluate::block_in_copy(): equal blocks of one copy have one id, others do not.
// Concurrency: immutable.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "evaluate/trace.h"

namespace penstock::sim {

class BlockIds {
 public:
  explicit BlockIds(const evaluate::Trace& trace) : trace_(trace), numbers_(trace.blocks.size()) {
    std::unordered_map<std::uint64_t, std::uint32_t> seen;
    for (std::size_t i = 0; i < trace.blocks.size(); ++i)
      numbers_[i] =
          seen.try_emplace(trace.blocks[i], static_cast<std::uint32_t>(seen.size())).first->second;
    distinct_ = seen.size();
  }

  // Overwrites `out` with the blocks of the arrival's prompt.
  void of(const evaluate::Arrival& arrival, std::vector<std::uint64_t>& out) const {
    const evaluate::TraceRequest& request = trace_.requests[arrival.request];
    const std::uint64_t base = arrival.copy * distinct_;
    out.resize(request.block_count);
    for (std::uint32_t i = 0; i < request.block_count; ++i)
      out[i] = base + numbers_[request.first_block + i];
  }

 private:
  const evaluate::Trace& trace_;
  std::vector<std::uint32_t> numbers_;  // of trace.blocks
  std::uint64_t distinct_ = 0;
};

}  // namespace penstock::sim
