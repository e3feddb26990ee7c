// Grammar: a compiled pushdown automaton over bytes: rules, each a deterministic automaton whose
// steps are bytes or calls of other rules.
//
// A reader stands at a node of a rule with a stack of the nodes to return to; a byte moves it along
// an edge, a call pushes, the end of a rule pops. Two calls, or a call and an edge, may leave one
// node, so a reader is a small set of such positions (matcher.h). Rules may count: an edge with
// kTick passes while the rule's count is below its max, one with kClose when it has reached its
// min, so that "at most 5,000 characters" costs no more nodes than "any".
//
// Symbols: 0..255 are bytes; kTokenSymbol + id is exactly the special token of that id, which no
// text spells. Invariants: from every node the end of its rule can be reached, and the end of the
// root rule from every reader's set: there are no dead ends. No rule calls itself before it reads
// something, except as its last step. kTick and kClose stand on bytes that nothing else of the rule
// can read there. Concurrency: immutable. Errors: none. Source:
// docs/design/0011-structured-output.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::grammar {

inline constexpr std::uint32_t kTokenSymbol = 256;
inline constexpr std::uint32_t kUnbounded = 0xFFFFFFFF;

enum class EdgeOp : std::uint8_t { kNone, kTick, kClose };

// Rules that are the same in every grammar, so that what is known of their masks is shared.
enum class CommonRule : std::uint8_t { kNone, kString, kCountedString, kNumber, kInteger };

struct Grammar {
  struct Edge {
    std::uint32_t first;  // symbols, inclusive
    std::uint32_t last;
    std::uint32_t target;
    EdgeOp op;
  };
  struct Call {
    std::uint32_t rule;
    std::uint32_t target;  // where to go on after it
    bool tail;             // nothing follows: its end is ours
  };
  struct Node {
    std::uint32_t edges;  // [edges, edges_end) of `edges`, sorted, disjoint
    std::uint32_t edges_end;
    std::uint32_t calls;
    std::uint32_t calls_end;
    std::uint32_t rule;
    std::uint32_t table;  // of `tables`, or kNoTable
    bool final;           // the rule may end here
  };
  struct Rule {
    std::uint32_t start;  // its first node; a rule's nodes follow one another
    std::uint32_t min;
    std::uint32_t max;
    bool counts;
    CommonRule common;
  };
  static constexpr std::uint32_t kNoTable = 0xFFFFFFFF;

  std::vector<Node> nodes;
  std::vector<Edge> edges;
  std::vector<Call> calls;
  std::vector<Rule> rules;                             // 0 is the root
  std::vector<std::array<std::uint32_t, 256>> tables;  // byte -> 1 + index into `edges`, or 0

  // Memory that it takes.
  std::size_t bytes() const {
    return nodes.capacity() * sizeof(Node) + edges.capacity() * sizeof(Edge) +
           calls.capacity() * sizeof(Call) + rules.capacity() * sizeof(Rule) +
           tables.capacity() * sizeof(tables[0]);
  }
  // The edge that a symbol takes out of a node, or null.
  const Edge* edge(const Node& node, std::uint32_t symbol) const {
    if (node.table != kNoTable && symbol < 256) {
      const std::uint32_t index = tables[node.table][symbol];
      return index == 0 ? nullptr : &edges[index - 1];
    }
    for (std::uint32_t i = node.edges; i < node.edges_end; ++i) {
      if (symbol < edges[i].first) return nullptr;
      if (symbol <= edges[i].last) return &edges[i];
    }
    return nullptr;
  }
};

}  // namespace penstock::grammar
