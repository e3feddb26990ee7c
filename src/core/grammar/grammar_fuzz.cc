// Bytes as a schema, pattern, EBNF or Lark grammar (by the first byte). Checks: no crash, no hang;
// a refusal says why; what compiles has no dead end: a walk by the lowest and one by the highest
// byte that fits always finds a next byte or a complete text, and steps back leave no trace.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "core/grammar/constraint.h"
#include "core/grammar/matcher.h"

namespace penstock::grammar {
namespace {

void walk(const std::shared_ptr<const Grammar>& grammar, bool from_below) {
  Matcher matcher(grammar);
  for (int step = 0; step < 64; ++step) {
    const Reader before = matcher.reader();
    ENSURE(!before.positions.empty() || before.complete);
    bool moved = false;
    for (std::uint32_t i = 0; i < 256 && !moved; ++i)
      moved = matcher.advance_symbol(from_below ? i : 255 - i);
    if (!moved) {
      // A special token may be all that fits.
      bool token = false;
      for (const Position& at : before.positions) {
        const Grammar::Node& node = grammar->nodes[at.node];
        token = token || grammar->edges[node.edges_end - 1].last >= kTokenSymbol;
      }
      ENSURE(before.complete || token);
      return;
    }
    const Reader after = matcher.reader();
    matcher.restore(before);
    ENSURE(matcher.reader().positions == before.positions);
    matcher.restore(after);
  }
}

}  // namespace
}  // namespace penstock::grammar

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock;
  if (size == 0) return 0;
  constexpr Constraint::Kind kKinds[] = {Constraint::Kind::kJsonSchema, Constraint::Kind::kRegex,
                                         Constraint::Kind::kEbnf, Constraint::Kind::kLark};
  Constraint constraint{kKinds[data[0] % 4]};
  constraint.text.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  grammar::GrammarLimits limits;
  limits.work_max = 200'000;
  limits.nodes_max = 20'000;
  limits.nfa_states_max = 100'000;
  const auto compiled = grammar::compile(constraint, limits);
  if (!compiled) {
    ENSURE(!compiled.error().message.empty());
    return 0;
  }
  grammar::walk(*compiled, true);
  grammar::walk(*compiled, false);
  return 0;
}
