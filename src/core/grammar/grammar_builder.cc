#include "core/grammar/grammar_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "base/utf8.h"

namespace penstock::grammar {
namespace {

// A node with more edges is looked up in a table of 1 KiB, as long as there are few of those.
constexpr std::uint32_t kEdgesWithoutTable = 4;
constexpr std::size_t kTablesMax = 8192;

}  // namespace

// One determinised rule, before dead ends are cut. Node 0 is its start.
struct GrammarBuilder::Dfa {
  struct Node {
    std::vector<Edge> edges;
    std::vector<std::pair<RuleId, std::uint32_t>> calls;
    bool final = false;
    bool live = false;
  };
  std::vector<Node> nodes;
};

GrammarBuilder::RuleId GrammarBuilder::rule(std::string name, RuleOptions options) {
  const State start = state();
  const State end = state();
  rules_.push_back({std::move(name), start, end, options});
  return static_cast<RuleId>(rules_.size() - 1);
}

GrammarBuilder::State GrammarBuilder::state() {
  states_.emplace_back();
  return static_cast<State>(states_.size() - 1);
}

void GrammarBuilder::literal(State from, std::string_view bytes, State to, EdgeOp op) {
  if (bytes.empty()) return empty(from, to);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const State next = i + 1 == bytes.size() ? to : state();
    const auto byte = static_cast<std::uint8_t>(bytes[i]);
    edge(from, byte, byte, next, i == 0 ? op : EdgeOp::kNone);
    from = next;
  }
}

// The state from which `bytes` more bytes of a character lead to `to`, whatever they are.
GrammarBuilder::State GrammarBuilder::tail(State to, std::size_t bytes) {
  if (bytes == 0) return to;
  const auto found = tails_.find({to, bytes});
  if (found != tails_.end()) return found->second;
  const State before = state();
  edge(before, 0x80, 0xBF, tail(to, bytes - 1));
  tails_.emplace(std::pair(to, bytes), before);
  return before;
}

void GrammarBuilder::code_points(State from, const CodePointSet& set, State to) {
  for (const ByteSequence& sequence : utf8_sequences(set)) {
    std::size_t fixed = sequence.size();  // bytes before those that may be anything
    while (fixed > 1 && sequence[fixed - 1].first == 0x80 && sequence[fixed - 1].last == 0xBF)
      --fixed;
    State at = from;
    for (std::size_t i = 0; i < fixed; ++i) {
      const State next = i + 1 == fixed ? tail(to, sequence.size() - fixed) : state();
      edge(at, sequence[i].first, sequence[i].last, next);
      at = next;
    }
  }
}

void GrammarBuilder::code_points_json(State from, const CodePointSet& set, State to) {
  CodePointSet plain;
  for (auto [first, last] : set) {
    for (char32_t c = first; c <= std::min<char32_t>(last, '\\'); ++c) {
      if (c >= 0x20 && c != '"' && c != '\\') continue;
      std::string text;
      append_utf8(c, text);
      literal(from, json_escaped(text), to);
    }
    plain.push_back({first, last});
  }
  CodePointSet escaped = normalized({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  CodePointSet unescaped;
  for (const auto& [first, last] : complement(escaped)) {
    for (const auto& [from_point, to_point] : plain) {
      const char32_t low = std::max(first, from_point);
      const char32_t high = std::min(last, to_point);
      if (low <= high) unescaped.push_back({low, high});
    }
  }
  code_points(from, normalized(std::move(unescaped)), to);
}

void GrammarBuilder::text(State from, const TextAutomaton& automaton, Spelling spelling, State to) {
  if (automaton.states.empty()) return;
  std::vector<State> ids;
  for (const auto& text_state : automaton.states) {
    ids.push_back(state());
    if (text_state.accepts) empty(ids.back(), to);
    if (!within_limits()) return;
  }
  empty(from, ids[0]);
  for (std::size_t s = 0; s < ids.size() && within_limits(); ++s) {
    std::map<std::uint32_t, CodePointSet> by_target;
    for (const auto& edge : automaton.states[s].edges)
      by_target[edge.target].push_back({edge.first, edge.last});
    for (auto& [target, set] : by_target) {
      const CodePointSet points = normalized(std::move(set));
      if (spelling == Spelling::kJson) {
        code_points_json(ids[s], points, ids[target]);
      } else {
        code_points(ids[s], points, ids[target]);
      }
    }
  }
}

std::unexpected<Error> GrammarBuilder::over_limit() const {
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format(
          "the grammar is too large: it needs more than {} states, {} rules, {} bytes or {} "
          "steps to compile; make it smaller, or its bounds narrower",
          limits_.nodes_max, limits_.rules_max, limits_.compiled_bytes_max, limits_.work_max));
}

// ---------------------------------------------------------------------------- determinising

struct GrammarBuilder::Determiniser {
  using Set = std::vector<State>;
  struct SetHash {
    std::size_t operator()(const Set& set) const {
      std::uint64_t hash = 0xCBF29CE484222325;
      for (const State s : set)
        hash = (hash ^ s) * 0x100000001B3 + (hash >> 32);
      return hash;
    }
  };

  const GrammarBuilder& builder;
  std::vector<std::uint32_t> seen;
  std::uint32_t round = 0;
  std::uint64_t work = 0;
  std::uint64_t nodes = 0;

  explicit Determiniser(const GrammarBuilder& b) : builder(b), seen(b.states_.size(), 0) {}

  // What an end state is reached by matters, all else only if something leaves it.
  Set closure(const Set& from, State end) {
    ++round;
    Set stack;
    Set out;
    const auto visit = [&](State s) {
      if (seen[s] == round) return;
      seen[s] = round;
      stack.push_back(s);
    };
    for (const State s : from)
      visit(s);
    while (!stack.empty()) {
      const State s = stack.back();
      stack.pop_back();
      const NfaState& state = builder.states_[s];
      if (s == end || !state.edges.empty() || !state.calls.empty()) out.push_back(s);
      for (const State target : state.empties)
        visit(target);
      ++work;
    }
    std::ranges::sort(out);
    return out;
  }

  std::optional<Dfa> run(const Rule& rule) {
    Dfa out;
    std::vector<Set> sets;
    std::unordered_map<Set, std::uint32_t, SetHash> ids;
    const auto add = [&](const Set& from) {
      Set set = closure(from, rule.end);
      const auto [found, fresh] =
          ids.try_emplace(std::move(set), static_cast<std::uint32_t>(out.nodes.size()));
      if (fresh) {
        out.nodes.emplace_back().final = std::ranges::binary_search(found->first, rule.end);
        sets.push_back(found->first);
      }
      return found->second;
    };
    add({rule.start});
    std::vector<Edge> parts;
    std::vector<std::uint32_t> cuts;
    for (std::uint32_t at = 0; at < out.nodes.size(); ++at) {
      const Set set = sets[at];
      work += set.size();
      if (++nodes > builder.limits_.nodes_max || work > builder.limits_.work_max)
        return std::nullopt;
      parts.clear();
      std::map<RuleId, Set> calls;
      for (const State s : set) {
        const NfaState& state = builder.states_[s];
        parts.insert(parts.end(), state.edges.begin(), state.edges.end());
        for (const auto& [callee, target] : state.calls)
          calls[callee].push_back(target);
      }
      for (const auto& [callee, targets] : calls) {
        const std::uint32_t target = add(targets);
        out.nodes[at].calls.emplace_back(callee, target);
      }
      if (parts.size() == 1) {
        const std::uint32_t target = add({parts[0].target});
        out.nodes[at].edges.push_back({parts[0].first, parts[0].last, target, parts[0].op});
        continue;
      }
      cuts.clear();
      for (const Edge& part : parts) {
        cuts.push_back(part.first);
        cuts.push_back(part.last + 1);
      }
      std::ranges::sort(cuts);
      cuts.erase(std::ranges::unique(cuts).begin(), cuts.end());
      std::ranges::sort(parts, {}, &Edge::first);
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        Set targets;
        EdgeOp op = EdgeOp::kNone;
        for (const Edge& part : parts) {
          ++work;
          if (part.first > cuts[i]) break;
          if (part.last < cuts[i]) continue;
          targets.push_back(part.target);
          op = part.op;
        }
        if (targets.empty()) continue;
        const std::uint32_t target = add(targets);
        auto& edges = out.nodes[at].edges;
        if (!edges.empty() && edges.back().target == target && edges.back().op == op &&
            edges.back().last + 1 == cuts[i]) {
          edges.back().last = cuts[i + 1] - 1;
        } else {
          edges.push_back({cuts[i], cuts[i + 1] - 1, target, op});
        }
      }
    }
    return out;
  }
};

// Marks the nodes from which their rule can end, given which rules can.
std::vector<bool> GrammarBuilder::productive_rules(std::vector<Dfa>& automata,
                                                   const std::vector<Rule>& rules) {
  std::vector<bool> productive(rules.size(), false);
  const auto usable = [&](const auto& call, const Dfa& automaton) {
    return productive[call.first] && automaton.nodes[call.second].live;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (RuleId r = 0; r < rules.size(); ++r) {
      Dfa& automaton = automata[r];
      // Nodes mostly lead to later ones, so a walk from the back settles most at once.
      for (bool again = !automaton.nodes.empty(); again;) {
        again = false;
        for (std::size_t n = automaton.nodes.size(); n-- > 0;) {
          Dfa::Node& node = automaton.nodes[n];
          if (node.live) continue;
          node.live =
              node.final ||
              std::ranges::any_of(node.edges,
                                  [&](const Edge& e) { return automaton.nodes[e.target].live; }) ||
              std::ranges::any_of(node.calls, [&](const auto& c) { return usable(c, automaton); });
          again = again || node.live;
        }
        changed = changed || again;
      }
      if (productive[r] || automaton.nodes.empty() || !automaton.nodes[0].live) continue;
      // A rule that must count to at least one has to be able to.
      const bool ticks = std::ranges::any_of(automaton.nodes, [&](const Dfa::Node& node) {
        return std::ranges::any_of(node.edges, [&](const Edge& e) {
          return e.op == EdgeOp::kTick && automaton.nodes[e.target].live;
        });
      });
      if (rules[r].options.counts && rules[r].options.min > 0 && !ticks) continue;
      productive[r] = true;
      changed = true;
    }
  }
  return productive;
}

Status GrammarBuilder::check_left_recursion(const std::vector<Dfa>& automata) const {
  const std::size_t count = automata.size();
  std::vector<bool> nullable(count, false);
  // Nodes of a rule that are reached without reading anything.
  const auto begin_nodes = [&](RuleId r) {
    std::vector<std::uint32_t> nodes;
    if (automata[r].nodes.empty()) return nodes;
    std::vector<bool> seen(automata[r].nodes.size(), false);
    nodes.push_back(0);
    seen[0] = true;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (const auto& [callee, target] : automata[r].nodes[nodes[i]].calls) {
        if (!nullable[callee] || seen[target]) continue;
        seen[target] = true;
        nodes.push_back(target);
      }
    }
    return nodes;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (RuleId r = 0; r < count; ++r) {
      if (nullable[r]) continue;
      const auto nodes = begin_nodes(r);
      nullable[r] =
          std::ranges::any_of(nodes, [&](std::uint32_t n) { return automata[r].nodes[n].final; });
      changed = changed || nullable[r];
    }
  }
  struct Left {
    RuleId callee;
    bool tail;
  };
  std::vector<std::vector<Left>> lefts(count);
  for (RuleId r = 0; r < count; ++r) {
    for (const std::uint32_t n : begin_nodes(r)) {
      for (const auto& [callee, target] : automata[r].nodes[n].calls) {
        const auto& after = automata[r].nodes[target];
        lefts[r].push_back({callee, after.final && after.edges.empty() && after.calls.empty()});
      }
    }
  }
  // A cycle with a step that has something to come back for: from its callee back to its caller.
  std::vector<std::uint32_t> seen(count, 0);
  std::uint32_t round = 0;
  for (RuleId r = 0; r < count; ++r) {
    for (const Left& left : lefts[r]) {
      if (left.tail) continue;
      ++round;
      std::vector<RuleId> stack{left.callee};
      seen[left.callee] = round;
      while (!stack.empty()) {
        const RuleId at = stack.back();
        stack.pop_back();
        if (at == r) {
          return fail(ErrorCode::kInvalidArgument,
                      fmt::format("{} begins with itself, so it can't be read from the left; write "
                                  "the repetition as one: a (\"+\" a)* for a: a \"+\" a",
                                  rules_[r].name));
        }
        for (const Left& next : lefts[at]) {
          if (seen[next.callee] == round) continue;
          seen[next.callee] = round;
          stack.push_back(next.callee);
        }
      }
    }
  }
  return {};
}

Result<std::shared_ptr<const Grammar>> GrammarBuilder::build() {
  if (!within_limits()) return over_limit();
  std::vector<Dfa> automata(rules_.size());
  Determiniser determiniser(*this);
  std::vector<RuleId> queue{0};
  std::vector<bool> wanted(rules_.size(), false);
  wanted[0] = true;
  while (!queue.empty()) {
    const RuleId r = queue.back();
    queue.pop_back();
    auto automaton = determiniser.run(rules_[r]);
    if (!automaton) return over_limit();
    for (const auto& node : automaton->nodes) {
      for (const auto& [callee, target] : node.calls) {
        if (wanted[callee]) continue;
        wanted[callee] = true;
        queue.push_back(callee);
      }
    }
    automata[r] = std::move(*automaton);
  }
  const std::vector<bool> productive = productive_rules(automata, rules_);
  if (!productive[0]) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("nothing finite satisfies {}: it refers to itself without end, or what it "
                    "asks for can't all be true",
                    rules_[0].name));
  }
  for (RuleId r = 0; r < rules_.size(); ++r) {
    auto& nodes = automata[r].nodes;
    if (!productive[r]) {
      nodes.clear();
      continue;
    }
    for (auto& node : nodes) {
      std::erase_if(node.edges, [&](const Edge& e) { return !nodes[e.target].live; });
      std::erase_if(node.calls,
                    [&](const auto& c) { return !productive[c.first] || !nodes[c.second].live; });
    }
  }
  TRY_STATUS(check_left_recursion(automata));

  auto grammar = std::make_shared<Grammar>();
  std::vector<std::uint32_t> rule_ids(rules_.size(), 0);
  std::vector<std::vector<std::uint32_t>> node_ids(rules_.size());
  std::uint32_t node_count = 0;
  for (RuleId r = 0; r < rules_.size(); ++r) {
    const auto& nodes = automata[r].nodes;
    if (nodes.empty()) continue;
    rule_ids[r] = static_cast<std::uint32_t>(grammar->rules.size());
    const RuleOptions& o = rules_[r].options;
    grammar->rules.push_back({node_count, o.min, o.max, o.counts, o.common});
    for (const auto& node : nodes)
      node_ids[r].push_back(node.live ? node_count++ : 0);
  }
  const auto index = [](const auto& list) { return static_cast<std::uint32_t>(list.size()); };
  for (RuleId r = 0; r < rules_.size(); ++r) {
    const auto& nodes = automata[r].nodes;
    for (const auto& node : nodes) {
      if (!node.live) continue;
      Grammar::Node flat{index(grammar->edges), 0,         index(grammar->calls), 0, rule_ids[r],
                         Grammar::kNoTable,     node.final};
      for (const Edge& e : node.edges)
        grammar->edges.push_back({e.first, e.last, node_ids[r][e.target], e.op});
      for (const auto& [callee, target] : node.calls) {
        const auto& after = nodes[target];
        grammar->calls.push_back({rule_ids[callee], node_ids[r][target],
                                  after.final && after.edges.empty() && after.calls.empty()});
      }
      flat.edges_end = index(grammar->edges);
      flat.calls_end = index(grammar->calls);
      if (flat.edges_end - flat.edges > kEdgesWithoutTable && grammar->tables.size() < kTablesMax) {
        flat.table = index(grammar->tables);
        auto& table = grammar->tables.emplace_back();
        table.fill(0);
        for (std::uint32_t e = flat.edges; e < flat.edges_end; ++e) {
          for (std::uint32_t s = grammar->edges[e].first;
               s <= std::min<std::uint32_t>(grammar->edges[e].last, 255); ++s)
            table[s] = e + 1;
        }
      }
      grammar->nodes.push_back(flat);
    }
  }
  grammar->nodes.shrink_to_fit();
  grammar->edges.shrink_to_fit();
  grammar->calls.shrink_to_fit();
  grammar->tables.shrink_to_fit();
  if (grammar->bytes() > limits_.compiled_bytes_max) return over_limit();
  return grammar;
}

}  // namespace penstock::grammar
