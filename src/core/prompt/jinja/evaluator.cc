#include "core/prompt/jinja/evaluator.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>

#include "base/result.h"
#include "core/prompt/jinja/depth_guard.h"

namespace penstock::jinja {
namespace {

// Statements, expressions and macros in one another; far below what a thread's stack holds.
constexpr int kRunDepthMax = 400;

// A failure gets the line of the innermost node that has one.
template <typename T>
Fallible<T> at_line(Fallible<T> result, int line) {
  if (!result && result.error().line == 0) result.error().line = line;
  return result;
}

constexpr std::array<std::string_view, 5> kFunctions = {"range", "namespace", "dict",
                                                        "raise_exception", "strftime_now"};

}  // namespace

void Evaluator::Scope::set(std::string_view name, Value value) {
  const auto found = std::ranges::find(variables, name, &std::pair<std::string_view, Value>::first);
  if (found != variables.end()) {
    found->second = std::move(value);
  } else {
    variables.emplace_back(name, std::move(value));
  }
}

Fallible<Text> Evaluator::run(const Body& body) {
  auto done = execute(body, top_);
  if (!done) return std::unexpected(std::move(done.error()));
  return std::move(out_);
}

Fallible<void> Evaluator::step() {
  if (depth_ > kRunDepthMax) {
    return failure(fmt::format("more than {} statements, expressions and macros in one another",
                               kRunDepthMax));
  }
  if (budget_.steps == 0) {
    return failure(
        fmt::format("more than {} steps; is there a loop that is too long?", limits_.steps));
  }
  --budget_.steps;
  return {};
}

Fallible<Evaluator::Flow> Evaluator::execute(const Body& body, Scope& scope) {
  for (const auto& statement : body) {
    TRY(const Flow flow, execute(*statement, scope));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Fallible<Evaluator::Flow> Evaluator::execute(const Statement& statement, Scope& scope) {
  const DepthGuard deeper(depth_);
  if (auto done = at_line(step(), statement.line); !done) return std::unexpected(done.error());
  return at_line(dispatch(statement, scope), statement.line);
}

Fallible<Evaluator::Flow> Evaluator::dispatch(const Statement& statement, Scope& scope) {
  using Kind = Statement::Kind;
  switch (statement.kind) {
    case Kind::kText:
      TRY_STATUS(write(statement.text));
      break;
    case Kind::kOutput: {
      TRY(const Value value, evaluate(*statement.expression, scope));
      if (const Text* text = value.text()) {
        TRY_STATUS(write(*text));
      } else {
        TRY_STATUS(charge(budget_, weight_of(value)));
        TRY(const Text text_of, printed(value));
        TRY_STATUS(write(text_of));
      }
      break;
    }
    case Kind::kIf:
      return if_statement(statement, scope);
    case Kind::kFor:
      return for_statement(statement, scope);
    case Kind::kSet: {
      TRY(Value value, evaluate(*statement.expression, scope));
      TRY_STATUS(assign(statement.target, std::move(value), scope));
      break;
    }
    case Kind::kSetBlock:
    case Kind::kFilter: {
      Scope inner{&scope, {}};
      TRY(Text text, captured(statement.body, inner));
      Value value(std::move(text));
      if (statement.expression != nullptr) {
        const Text before = *value.text();
        TRY(value, filtered(*statement.expression, before, scope));
      }
      if (statement.kind == Kind::kSetBlock) {
        TRY_STATUS(assign(statement.target, std::move(value), scope));
      } else {
        TRY(const Text printed_value, printed(value));
        TRY_STATUS(write(printed_value));
      }
      break;
    }
    case Kind::kMacro:
      scope.set(statement.macro.name, Value(&statement.macro));
      break;
    case Kind::kWith: {
      Scope inner{&scope, {}};
      for (const auto& [name, expression] : statement.bindings) {
        TRY(Value value, evaluate(*expression, scope));
        inner.set(name, std::move(value));
      }
      return execute(statement.body, inner);
    }
    case Kind::kGroup: {
      Scope inner{&scope, {}};
      return execute(statement.body, inner);
    }
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Fallible<Evaluator::Flow> Evaluator::if_statement(const Statement& statement, Scope& scope) {
  for (const auto& [condition, body] : statement.branches) {
    TRY(const Value value, evaluate(*condition, scope));
    if (truthy(value)) return execute(body, scope);
  }
  return execute(statement.otherwise, scope);
}

// What the loop runs over, without what its condition leaves out.
Fallible<std::vector<Value>> Evaluator::loop_items(const Statement& statement, Scope& scope) {
  TRY(const Value over, evaluate(*statement.expression, scope));
  // The characters of a text are values of their own.
  TRY_STATUS(charge(budget_, over.text() != nullptr ? over.text()->size() * 64 : 0));
  TRY(auto all, items_of(over));
  TRY_STATUS(charge(budget_, all.size() * sizeof(Value)));
  if (statement.condition == nullptr) return all;
  std::vector<Value> kept;
  for (Value& item : all) {
    Scope turn{&scope, {}};
    TRY_STATUS(assign(statement.target, item, turn));
    TRY(const Value wanted, evaluate(*statement.condition, turn));
    if (truthy(wanted)) kept.push_back(std::move(item));
  }
  return kept;
}

Fallible<Evaluator::Flow> Evaluator::for_statement(const Statement& statement, Scope& scope) {
  TRY(const auto items, loop_items(statement, scope));
  if (items.empty()) return execute(statement.otherwise, scope);
  const Loop* outer = loop_;
  Loop loop{&items, 0};
  for (; loop.index < items.size(); ++loop.index) {
    Scope turn{&scope, {}};
    TRY_STATUS(assign(statement.target, items[loop.index], turn));
    loop_ = &loop;
    const auto flow = execute(statement.body, turn);
    loop_ = outer;
    if (!flow) return flow;
    if (*flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

Fallible<Text> Evaluator::captured(const Body& body, Scope& scope) {
  Text around = std::exchange(out_, Text());
  auto done = execute(body, scope);
  Text made = std::exchange(out_, std::move(around));
  if (!done) return std::unexpected(std::move(done.error()));
  if (*done != Flow::kNext) {
    return failure("break and continue inside of a block that makes text aren't supported");
  }
  return made;
}

Fallible<void> Evaluator::write(const Text& text) {
  TRY_STATUS(charge(budget_, text.size()));
  if (text.size() > limits_.output_bytes - std::min(out_.size(), limits_.output_bytes)) {
    return failure(fmt::format("the prompt is larger than {} bytes", limits_.output_bytes));
  }
  out_.append(text);
  return {};
}

Fallible<void> Evaluator::assign(const Target& target, Value value, Scope& scope) {
  if (!target.attribute.empty()) {
    TRY(const Value holder, look_up(target.names[0], scope));
    Namespace* space = holder.space();
    if (space == nullptr) {
      return failure(
          fmt::format("'{}' is no namespace, so its attributes can't be set", target.names[0]));
    }
    TRY_STATUS(charge(budget_, target.attribute.size() + sizeof(Value)));
    space->values.set(std::make_shared<const Text>(target.attribute, Origin::kTemplate),
                      std::move(value));
    return {};
  }
  if (!target.unpacks) {
    scope.set(target.names[0], std::move(value));
    return {};
  }
  TRY(auto items, items_of(value));
  if (items.size() != target.names.size()) {
    return failure(fmt::format("{} values can't be unpacked into {} names", items.size(),
                               target.names.size()));
  }
  for (std::size_t i = 0; i < items.size(); ++i)
    scope.set(target.names[i], std::move(items[i]));
  return {};
}

Fallible<Value> Evaluator::look_up(std::string_view name, const Scope& scope) const {
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    const auto found =
        std::ranges::find(at->variables, name, &std::pair<std::string_view, Value>::first);
    if (found != at->variables.end()) return found->second;
  }
  if (const Value* found = variables_.find(name)) return *found;
  const auto* function = std::ranges::find(kFunctions, name);
  const bool there = function != kFunctions.end() && (name != "strftime_now" || now_.has_value());
  return there ? Value(Function{*function}) : Value(Undefined{std::string(name)});
}

Fallible<Value> Evaluator::loop_attribute(std::string_view name) const {
  if (loop_ == nullptr) return failure("'loop' is used outside of a loop");
  const std::vector<Value>& items = *loop_->items;
  const std::size_t at = loop_->index;
  const auto number = [](std::size_t value) { return Value(static_cast<std::int64_t>(value)); };
  if (name == "index") return number(at + 1);
  if (name == "index0") return number(at);
  if (name == "revindex") return number(items.size() - at);
  if (name == "revindex0") return number(items.size() - at - 1);
  if (name == "first") return Value(at == 0);
  if (name == "last") return Value(at + 1 == items.size());
  if (name == "length") return number(items.size());
  // Depths are those of recursive loops, which there aren't.
  if (name == "depth") return number(1);
  if (name == "depth0") return number(0);
  if (name == "previtem") return at == 0 ? Value(Undefined{"loop.previtem"}) : items[at - 1];
  if (name == "nextitem") {
    return at + 1 == items.size() ? Value(Undefined{"loop.nextitem"}) : items[at + 1];
  }
  return failure(fmt::format("loop.{} isn't supported", name));
}

}  // namespace penstock::jinja
