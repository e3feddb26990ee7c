// Limits on what a grammar may cost to compile: a client sends it, so each has a number.
//
// Concurrency: values. Errors: what exceeds one is refused with kInvalidArgument, naming it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::grammar {

struct GrammarLimits {
  std::size_t source_bytes_max = std::size_t{512} << 10;  // of a schema, pattern or grammar
  std::uint32_t depth_max = 64;                           // nested groups, schemas inside schemas
  std::uint32_t rules_max = 10'000;
  std::uint32_t nfa_states_max = 400'000;  // before determinising, all rules together
  std::uint32_t nodes_max = 200'000;       // after it
  std::size_t compiled_bytes_max = std::size_t{24} << 20;
  std::uint32_t text_states_max = 20'000;  // of one pattern's automaton
  std::uint64_t work_max = 2'000'000;      // states looked at while determinising: about 200 ms
};

}  // namespace penstock::grammar
