// Expressions of a template, by precedence as Jinja has it: conditional, or, and, not, comparison,
// + -, ~, * / // %, **, unary signs, then attributes, items, calls, filters and tests.
//
// Errors: Failure with its line. Concurrency: one owner.
#pragma once

#include "core/prompt/jinja/ast.h"
#include "core/prompt/jinja/token_stream.h"

namespace penstock::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& in) : in_(in) {}

  enum class Conditional : std::uint8_t { kAllowed, kNot };
  // One expression, or a tuple of them without brackets.
  Fallible<ExpressionPointer> tuple(Conditional conditional = Conditional::kAllowed);
  Fallible<ExpressionPointer> expression();
  // "| a | b(1)" behind a subject, which is null for the filters of a block; the first bar may be
  // missing there.
  Fallible<ExpressionPointer> filters(ExpressionPointer subject);

 private:
  using Parsed = Fallible<ExpressionPointer>;
  Parsed any_or();
  Parsed all_and();
  Parsed negation();
  Parsed comparison();
  Parsed binary(int level);
  Parsed concatenation();
  Parsed unary(bool with_filters);
  Parsed primary();
  Parsed literal_string();
  Parsed number();
  Parsed brackets();
  Parsed dict();
  Parsed postfix(ExpressionPointer subject);
  Parsed attribute(ExpressionPointer subject);
  Parsed item(ExpressionPointer subject);
  Parsed filter(ExpressionPointer subject);
  Parsed test(ExpressionPointer subject);
  Parsed list_until(std::string_view close, Expression::Kind kind);
  Fallible<Arguments> arguments();
  // Whether an expression ends where a tuple may.
  bool at_tuple_end() const;

  TokenStream& in_;
  int depth_ = 0;
};

}  // namespace penstock::jinja
