// Patterns (ECMA-262 regular expressions) as nondeterministic automata: what text_automaton.cc
// makes its deterministic ones of. Internal to this folder.
//
// Errors: parse_pattern() as pattern_automaton(). Precondition: the pattern is valid UTF-8.
// Concurrency: values.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/grammar/code_points.h"
#include "core/grammar/limits.h"

namespace penstock::grammar {

enum class Passage : std::uint8_t { kFree, kAtBegin, kAtEnd };

struct Nfa {
  struct Empty {
    Passage passage;
    std::uint32_t target;
  };
  struct State {
    std::vector<Empty> empties;
    CodePointSet set;  // to `target`
    std::uint32_t target = 0;
  };
  std::vector<State> states;
};

struct ParsedPattern {
  Nfa nfa;
  std::uint32_t entry = 0;
  std::uint32_t exit = 0;
};

Result<ParsedPattern> parse_pattern(std::string_view pattern, const GrammarLimits& limits);
// A pattern that needs more states than there may be.
std::unexpected<Error> too_large(const GrammarLimits& limits);

}  // namespace penstock::grammar
