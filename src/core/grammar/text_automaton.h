// TextAutomaton: a deterministic automaton over code points: patterns, formats, lengths, and what
// several of them have in common.
//
// JSON Schema states its rules for strings on the decoded text, one by one; the bytes between the
// quotes have to meet all of them. Each rule becomes one of these, intersect() joins them, and
// GrammarBuilder::text() spells the result in bytes.
//
// Invariants: state 0 is the start; edges of a state are sorted and disjoint; from every state a
// text that is accepted can be reached; no state at all: nothing is accepted. Errors:
// kInvalidArgument for a pattern that is not one, kUnsupported for what no finite automaton can do
// (look-around, back-references) or this one doesn't (word borders, Unicode properties), and
// kInvalidArgument over text_states_max; the message has the place. Concurrency: values. Source:
// ECMA-262 section 22.2 (patterns), as JSON Schema 2020-12 section 6.4 recommends them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/grammar/code_points.h"
#include "core/grammar/limits.h"

namespace penstock::grammar {

struct TextAutomaton {
  struct Edge {
    char32_t first;
    char32_t last;
    std::uint32_t target;
  };
  struct State {
    std::vector<Edge> edges;
    bool accepts = false;
  };
  std::vector<State> states;

  bool accepts(std::string_view text) const;  // valid UTF-8
};

enum class PatternMatch : std::uint8_t {
  kSearch,  // somewhere in the text, as JSON Schema's `pattern`
  kWhole,
};

Result<TextAutomaton> pattern_automaton(std::string_view pattern, PatternMatch match,
                                        const GrammarLimits& limits);
Result<TextAutomaton> intersect(const TextAutomaton& a, const TextAutomaton& b,
                                const GrammarLimits& limits);
// Texts of so many code points.
Result<TextAutomaton> length_automaton(std::uint32_t min, std::uint32_t max,
                                       const GrammarLimits& limits);
// Every text but these.
TextAutomaton all_but(const std::vector<std::string>& texts);
// Every text in which `literal` does not occur. Precondition: `literal` is not empty.
TextAutomaton texts_without(std::string_view literal);
// JSON numbers without exponent that are multiples of step * 10^-decimals.
TextAutomaton multiples_automaton(std::uint32_t step, std::uint32_t decimals);

}  // namespace penstock::grammar
