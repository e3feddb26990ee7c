// GrammarBuilder: rules as graphs of states, put together by the front ends, compiled to a Grammar.
//
// States may have edges on bytes, edges on nothing, and calls of rules; build() determinises each
// rule that the root needs, throws away what can't come to an end, and checks what a Grammar
// promises.
//
// Errors: build() fails with kInvalidArgument when the root has no finite text (a schema that
// refers to itself without end), when a rule is left-recursive in a way that isn't its last step,
// and over a limit. Concurrency: one thread. Source: docs/design/0011-structured-output.md.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "core/grammar/code_points.h"
#include "core/grammar/grammar.h"
#include "core/grammar/limits.h"
#include "core/grammar/text_automaton.h"

namespace penstock::grammar {

enum class Spelling : std::uint8_t {
  kRaw,   // UTF-8
  kJson,  // between the quotes of a JSON string: as json_escaped() writes it
};

class GrammarBuilder {
 public:
  using State = std::uint32_t;
  using RuleId = std::uint32_t;

  struct RuleOptions {
    std::uint32_t min = 0;
    std::uint32_t max = kUnbounded;
    bool counts = false;
    CommonRule common = CommonRule::kNone;
  };

  explicit GrammarBuilder(const GrammarLimits& limits) : limits_(limits) {}

  // The first rule is the root. `name` is for messages.
  RuleId rule(std::string name) { return rule(std::move(name), RuleOptions{}); }
  RuleId rule(std::string name, RuleOptions options);
  State start(RuleId rule) const { return rules_[rule].start; }
  State end(RuleId rule) const { return rules_[rule].end; }
  std::size_t rule_count() const { return rules_.size(); }

  State state();
  void empty(State from, State to) { states_[from].empties.push_back(to); }
  void edge(State from, std::uint32_t first, std::uint32_t last, State to,
            EdgeOp op = EdgeOp::kNone) {
    states_[from].edges.push_back({first, last, to, op});
  }
  void call(State from, RuleId rule, State to) { states_[from].calls.push_back({rule, to}); }
  // `op` stands on the first byte. Precondition: `bytes` is not empty when there is an op.
  void literal(State from, std::string_view bytes, State to, EdgeOp op = EdgeOp::kNone);
  void code_points(State from, const CodePointSet& set, State to);
  void text(State from, const TextAutomaton& automaton, Spelling spelling, State to);

  // False once a limit is reached: what is added then may be left out, build() will say so.
  bool within_limits() const {
    return states_.size() <= limits_.nfa_states_max && rules_.size() <= limits_.rules_max;
  }
  Result<std::shared_ptr<const Grammar>> build();

 private:
  struct Edge {
    std::uint32_t first;
    std::uint32_t last;
    State target;
    EdgeOp op;
  };
  struct NfaState {
    std::vector<State> empties;
    std::vector<Edge> edges;
    std::vector<std::pair<RuleId, State>> calls;
  };
  struct Rule {
    std::string name;
    State start;
    State end;
    RuleOptions options;
  };
  struct Dfa;
  struct Determiniser;

  State tail(State to, std::size_t bytes);
  void code_points_json(State from, const CodePointSet& set, State to);
  std::unexpected<Error> over_limit() const;
  Status check_left_recursion(const std::vector<Dfa>& automata) const;
  static std::vector<bool> productive_rules(std::vector<Dfa>& automata,
                                            const std::vector<Rule>& rules);

  GrammarLimits limits_;
  std::vector<NfaState> states_;
  std::vector<Rule> rules_;
  std::map<std::pair<State, std::size_t>, State> tails_;  // states before n more UTF-8 tail bytes
};

}  // namespace penstock::grammar
