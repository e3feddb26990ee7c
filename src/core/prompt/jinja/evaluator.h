// Evaluator: one run of a template, statement by statement.
//
// Scopes are on the stack: a loop's turn, a macro's call and a `with` have their own, whose parent
// is around them; a macro's is the template's. Namespaces belong to the run, so what refers to them
// can't keep itself alive.
//
// Invariants: as Template. Errors: Failure with its line. Concurrency: one owner.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/prompt/jinja/builtins.h"
#include "core/prompt/jinja/template.h"

namespace penstock::jinja {

class Evaluator {
 public:
  Evaluator(const Dict& variables, std::optional<std::int64_t> now, const Limits& limits)
      : variables_(variables), now_(now), limits_(limits), budget_{limits.steps, limits.bytes} {}

  Fallible<Text> run(const Body& body);

 private:
  enum class Flow : std::uint8_t { kNext, kBreak, kContinue };

  struct Scope {
    Scope* parent = nullptr;
    std::vector<std::pair<std::string_view, Value>> variables;

    void set(std::string_view name, Value value);
  };
  struct Loop {
    const std::vector<Value>* items = nullptr;
    std::size_t index = 0;
  };

  Fallible<Flow> execute(const Body& body, Scope& scope);
  Fallible<Flow> execute(const Statement& statement, Scope& scope);
  Fallible<Flow> dispatch(const Statement& statement, Scope& scope);
  Fallible<Flow> if_statement(const Statement& statement, Scope& scope);
  Fallible<Flow> for_statement(const Statement& statement, Scope& scope);
  Fallible<std::vector<Value>> loop_items(const Statement& statement, Scope& scope);
  // The text that a body makes.
  Fallible<Text> captured(const Body& body, Scope& scope);
  Fallible<void> write(const Text& text);
  Fallible<void> assign(const Target& target, Value value, Scope& scope);

  Fallible<Value> evaluate(const Expression& node, Scope& scope);
  Fallible<Value> compute(const Expression& node, Scope& scope);
  Fallible<Value> look_up(std::string_view name, const Scope& scope) const;
  Fallible<Value> loop_attribute(std::string_view name) const;
  Fallible<Value> slice(const Expression& node, Scope& scope);
  Fallible<Value> call(const Expression& node, Scope& scope);
  Fallible<Value> call_function(std::string_view name, const CallArguments& arguments);
  Fallible<Value> call_macro(const MacroStatement& macro, const CallArguments& arguments);
  // Through a chain of filters whose innermost subject is `text`.
  Fallible<Value> filtered(const Expression& node, const Text& text, Scope& scope);
  Fallible<Value> filter(const Expression& node, Value subject, Scope& scope);
  Fallible<Value> container(const Expression& node, Scope& scope);
  Fallible<Value> concatenate(const Expression& node, Scope& scope);
  Fallible<Value> compare_chain(const Expression& node, Scope& scope);
  Fallible<Value> arithmetic(Operation operation, const Value& left, const Value& right);
  Fallible<CallArguments> arguments(const Arguments& given, Scope& scope);
  Fallible<void> step();

  const Dict& variables_;
  std::optional<std::int64_t> now_;
  const Limits& limits_;
  Budget budget_;
  Scope top_;
  Text out_;
  std::deque<Namespace> namespaces_;
  const Loop* loop_ = nullptr;
  int depth_ = 0;
};

}  // namespace penstock::jinja
