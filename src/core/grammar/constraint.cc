#include "core/grammar/constraint.h"

#include <fmt/format.h>

#include "core/grammar/ebnf.h"
#include "core/grammar/grammar_builder.h"
#include "core/grammar/json_schema.h"
#include "core/grammar/lark.h"

namespace penstock::grammar {
namespace {

Result<std::shared_ptr<const Grammar>> pattern_grammar(const std::string& pattern,
                                                       const GrammarLimits& limits) {
  if (pattern.size() > limits.source_bytes_max)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the pattern has more than {} bytes", limits.source_bytes_max));
  TRY(const TextAutomaton automaton, pattern_automaton(pattern, PatternMatch::kWhole, limits));
  GrammarBuilder builder(limits);
  const auto root = builder.rule("the pattern");
  builder.text(builder.start(root), automaton, Spelling::kRaw, builder.end(root));
  return builder.build();
}

}  // namespace

Result<std::shared_ptr<const Grammar>> compile(const Constraint& constraint,
                                               const GrammarLimits& limits) {
  switch (constraint.kind) {
    case Constraint::Kind::kJsonObject:
      return json_object_grammar(Whitespace::kLimited, limits);
    case Constraint::Kind::kJsonSchema:
      return json_schema_grammar(constraint.text, Whitespace::kLimited, limits);
    case Constraint::Kind::kRegex:
      return pattern_grammar(constraint.text, limits);
    case Constraint::Kind::kEbnf:
      return ebnf_grammar(constraint.text, limits);
    case Constraint::Kind::kLark:
      return lark_grammar(constraint.text, limits);
    case Constraint::Kind::kNone:
      break;
  }
  return fail(ErrorCode::kInternal, "a request without a constraint has no grammar");
}

}  // namespace penstock::grammar
