// The half of the evaluator that computes values.
#include <fmt/format.h>
#include <algorithm>

#include "base/result.h"
#include "core/prompt/jinja/depth_guard.h"
#include "core/prompt/jinja/evaluator.h"

namespace penstock::jinja {

Fallible<Value> Evaluator::evaluate(const Expression& node, Scope& scope) {
  const DepthGuard deeper(depth_);
  Fallible<Value> value = Value();
  if (auto done = step(); !done) {
    value = std::unexpected(done.error());
  } else {
    value = compute(node, scope);
  }
  if (!value && value.error().line == 0) value.error().line = node.line;
  return value;
}

Fallible<Value> Evaluator::compute(const Expression& node, Scope& scope) {
  using Kind = Expression::Kind;
  switch (node.kind) {
    case Kind::kConstant:
      return node.value;
    case Kind::kName:
      return look_up(node.name, scope);
    case Kind::kLoop:
      return loop_attribute(node.name);
    case Kind::kAttribute: {
      TRY(const Value subject, evaluate(*node.parts[0], scope));
      return attribute_of(subject, node.name);
    }
    case Kind::kItem: {
      TRY(const Value subject, evaluate(*node.parts[0], scope));
      TRY(const Value key, evaluate(*node.parts[1], scope));
      TRY_STATUS(charge(budget_, subject.text() != nullptr ? subject.text()->size() / 8 : 0));
      return item_of(subject, key);
    }
    case Kind::kSlice:
      return slice(node, scope);
    case Kind::kCall:
      return call(node, scope);
    case Kind::kFilter: {
      TRY(Value subject, evaluate(*node.parts[0], scope));
      return filter(node, std::move(subject), scope);
    }
    case Kind::kTest: {
      TRY(const Value subject, evaluate(*node.parts[0], scope));
      TRY(const CallArguments given, arguments(node.arguments, scope));
      TRY(const bool passes, apply_test(node.name, subject, given, budget_));
      return Value(passes);
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      return container(node, scope);
    case Kind::kConcatenate:
      return concatenate(node, scope);
    case Kind::kNot: {
      TRY(const Value operand, evaluate(*node.parts[0], scope));
      return Value(!truthy(operand));
    }
    case Kind::kNegative:
    case Kind::kPositive: {
      TRY(const Value operand, evaluate(*node.parts[0], scope));
      const auto sign = node.kind == Kind::kNegative ? Operation::kSubtract : Operation::kAdd;
      if (operand.is<double>() && node.kind == Kind::kNegative) {
        return Value(-std::get<double>(operand.variant()));
      }
      return arithmetic(sign, Value(std::int64_t{0}), operand);
    }
    case Kind::kAnd:
    case Kind::kOr: {
      Value value;
      for (const auto& part : node.parts) {
        TRY(value, evaluate(*part, scope));
        if (truthy(value) == (node.kind == Kind::kOr)) break;
      }
      return value;
    }
    case Kind::kConditional: {
      TRY(const Value condition, evaluate(*node.parts[0], scope));
      if (truthy(condition)) return evaluate(*node.parts[1], scope);
      if (node.parts[2] != nullptr) return evaluate(*node.parts[2], scope);
      return Value(Undefined{"the value of an if without else"});
    }
    case Kind::kBinary: {
      TRY(const Value left, evaluate(*node.parts[0], scope));
      TRY(const Value right, evaluate(*node.parts[1], scope));
      return arithmetic(node.operations[0], left, right);
    }
    case Kind::kCompare:
      return compare_chain(node, scope);
  }
  return failure("an expression of an unknown kind");
}

Fallible<Value> Evaluator::filtered(const Expression& node, const Text& text, Scope& scope) {
  if (node.kind != Expression::Kind::kFilter) {
    return failure("a block's filters can't be followed by tests or calls");
  }
  if (node.parts[0] == nullptr) return filter(node, Value(text), scope);
  TRY(Value subject, filtered(*node.parts[0], text, scope));
  return filter(node, std::move(subject), scope);
}

Fallible<Value> Evaluator::filter(const Expression& node, Value subject, Scope& scope) {
  TRY(const CallArguments given, arguments(node.arguments, scope));
  auto value = apply_filter(node.name, subject, given, budget_);
  if (!value && value.error().line == 0) value.error().line = node.line;
  return value;
}

Fallible<CallArguments> Evaluator::arguments(const Arguments& given, Scope& scope) {
  CallArguments out;
  for (const auto& argument : given.positional) {
    TRY(Value value, evaluate(*argument, scope));
    out.positional.push_back(std::move(value));
  }
  for (const auto& [name, argument] : given.keyword) {
    TRY(Value value, evaluate(*argument, scope));
    out.keyword.emplace_back(name, std::move(value));
  }
  return out;
}

// Which items a slice takes: the first, the one behind the last, and the step.
namespace {

struct Slice {
  std::int64_t start = 0;
  std::int64_t stop = 0;
  std::int64_t step = 1;
};

Fallible<Slice> slice_of(const Value (&bounds)[3], std::int64_t size) {
  for (const Value& bound : bounds) {
    if (bound.integer() == nullptr && !bound.is<None>()) {
      return failure(fmt::format("a slice takes integers, not a {}", type_name(bound)));
    }
  }
  Slice out;
  if (bounds[2].integer() != nullptr) out.step = *bounds[2].integer();
  if (out.step == 0) return failure("the step of a slice can't be 0");
  const bool up = out.step > 0;
  const auto clamped = [&](const Value& bound, std::int64_t fallback) {
    if (bound.integer() == nullptr) return fallback;
    std::int64_t at = *bound.integer();
    if (at < 0) at = std::max<std::int64_t>(at, -size - 1) + size;
    return std::clamp<std::int64_t>(at, up ? 0 : -1, up ? size : size - 1);
  };
  out.start = clamped(bounds[0], up ? 0 : size - 1);
  out.stop = clamped(bounds[1], up ? size : -1);
  // A step beyond the size takes one item, whatever it is.
  out.step = std::clamp<std::int64_t>(out.step, -size - 1, size + 1);
  return out;
}

}  // namespace

Fallible<Value> Evaluator::slice(const Expression& node, Scope& scope) {
  TRY(const Value subject, evaluate(*node.parts[0], scope));
  Value bounds[3] = {None{}, None{}, None{}};
  for (std::size_t i = 0; i < 3; ++i) {
    if (node.parts[i + 1] == nullptr) continue;
    TRY(bounds[i], evaluate(*node.parts[i + 1], scope));
  }
  const Text* text = subject.text();
  const List* list = subject.list();
  if (text != nullptr) {
    TRY_STATUS(charge(budget_, text->size()));
    const auto size = static_cast<std::int64_t>(count_characters(text->view()));
    TRY(const Slice part, slice_of(bounds, size));
    if (part.step == 1) {
      if (part.start >= part.stop) return Value(Text());
      const auto begin = byte_of_character(text->view(), static_cast<std::size_t>(part.start));
      const auto end = byte_of_character(text->view(), static_cast<std::size_t>(part.stop));
      return Value(text->substr(begin, end - begin));
    }
    TRY_STATUS(charge(budget_, text->size() * 64));
    TRY(const auto characters, items_of(subject));
    Text out;
    for (auto i = part.start; part.step > 0 ? i < part.stop : i > part.stop; i += part.step)
      out.append(*characters[static_cast<std::size_t>(i)].text());
    return Value(std::move(out));
  }
  if (list == nullptr) return failure(fmt::format("a {} can't be sliced", type_name(subject)));
  TRY(const Slice part, slice_of(bounds, static_cast<std::int64_t>(list->items.size())));
  TRY_STATUS(charge(budget_, list->items.size() * sizeof(Value)));
  std::vector<Value> items;
  for (auto i = part.start; part.step > 0 ? i < part.stop : i > part.stop; i += part.step)
    items.push_back(list->items[static_cast<std::size_t>(i)]);
  return make_list(std::move(items), list->tuple);
}

Fallible<Value> Evaluator::call(const Expression& node, Scope& scope) {
  const Expression& callee = *node.parts[0];
  TRY(const CallArguments given, arguments(node.arguments, scope));
  if (callee.kind == Expression::Kind::kLoop && callee.name == "cycle" && loop_ != nullptr &&
      !given.positional.empty()) {
    return given.positional[loop_->index % given.positional.size()];
  }
  Value target;
  if (callee.kind == Expression::Kind::kAttribute) {
    TRY(const Value subject, evaluate(*callee.parts[0], scope));
    if (has_method(subject, callee.name)) {
      return call_method(subject, callee.name, given, budget_);
    }
    if (subject.text() != nullptr || subject.list() != nullptr) {
      return call_method(subject, callee.name, given, budget_);  // says that there is none
    }
    TRY(target, attribute_of(subject, callee.name));
  } else {
    TRY(target, evaluate(callee, scope));
  }
  if (const auto* macro = std::get_if<const MacroStatement*>(&target.variant())) {
    return call_macro(**macro, given);
  }
  if (const auto* function = std::get_if<Function>(&target.variant())) {
    return call_function(function->name, given);
  }
  if (const auto* undefined = std::get_if<Undefined>(&target.variant())) {
    return failure(fmt::format("'{}' is undefined and can't be called", undefined->name));
  }
  return failure(fmt::format("a {} can't be called", type_name(target)));
}

Fallible<Value> Evaluator::call_function(std::string_view name, const CallArguments& given) {
  const Text* text = given.positional.size() == 1 ? given.positional[0].text() : nullptr;
  if (name == "raise_exception") {
    return std::unexpected(
        Failure{text != nullptr ? text->bytes() : "the template refuses this", 0, true});
  }
  if (name == "range") return range_of(given, budget_);
  if (name == "strftime_now") {
    if (text == nullptr) return failure("strftime_now takes a format");
    TRY(std::string date, date_text(now_.value_or(0), text->view()));
    return Value(Text(std::move(date), Origin::kValue));
  }
  if (name != "namespace" && name != "dict") return failure("this can't be called here");
  Dict values;
  for (const Value& value : given.positional) {
    if (value.dict() == nullptr) return failure(fmt::format("{} takes name=value", name));
    values = *value.dict();
  }
  TRY_STATUS(
      charge(budget_, weight_of(Value()) * (1 + values.entries.size() + given.keyword.size())));
  for (const auto& [key, value] : given.keyword)
    values.set(std::make_shared<const Text>(key, Origin::kTemplate), value);
  if (name == "dict") return make_dict(std::move(values));
  return Value(&namespaces_.emplace_back(Namespace{std::move(values)}));
}

Fallible<Value> Evaluator::call_macro(const MacroStatement& macro, const CallArguments& given) {
  if (given.positional.size() > macro.parameters.size()) {
    return failure(fmt::format("the macro '{}' takes at most {} arguments", macro.name,
                               macro.parameters.size()));
  }
  Scope scope{&top_, {}};
  for (std::size_t i = 0; i < given.positional.size(); ++i)
    scope.set(macro.parameters[i].name, given.positional[i]);
  for (const auto& [name, value] : given.keyword) {
    const auto parameter =
        std::ranges::find(macro.parameters, name, &MacroStatement::Parameter::name);
    if (parameter == macro.parameters.end()) {
      return failure(fmt::format("the macro '{}' has no parameter '{}'", macro.name, name));
    }
    scope.set(parameter->name, value);
  }
  const Loop* around = std::exchange(loop_, nullptr);
  const auto body = [&]() -> Fallible<Text> {
    for (const auto& parameter : macro.parameters) {
      const auto given_name = [&](const auto& variable) {
        return variable.first == parameter.name;
      };
      if (std::ranges::any_of(scope.variables, given_name)) continue;
      Value fallback(Undefined{parameter.name});
      if (parameter.fallback != nullptr) {
        TRY(fallback, evaluate(*parameter.fallback, scope));
      }
      scope.set(parameter.name, std::move(fallback));
    }
    return captured(macro.body, scope);
  };
  auto made = body();
  loop_ = around;
  if (!made) return std::unexpected(std::move(made.error()));
  return Value(std::move(*made));
}

Fallible<Value> Evaluator::container(const Expression& node, Scope& scope) {
  TRY_STATUS(charge(budget_, sizeof(Value) * (1 + node.parts.size())));
  std::vector<Value> values;
  for (const auto& part : node.parts) {
    TRY(Value value, evaluate(*part, scope));
    values.push_back(std::move(value));
  }
  if (node.kind != Expression::Kind::kDict) {
    return make_list(std::move(values), node.kind == Expression::Kind::kTuple);
  }
  Dict dict;
  for (std::size_t i = 0; i + 1 < values.size(); i += 2) {
    const auto* key = std::get_if<TextPointer>(&values[i].variant());
    if (key == nullptr) {
      return failure(
          fmt::format("the keys of a dict are strings here, not a {}", type_name(values[i])));
    }
    dict.set(*key, std::move(values[i + 1]));
  }
  return make_dict(std::move(dict));
}

Fallible<Value> Evaluator::concatenate(const Expression& node, Scope& scope) {
  Text out;
  for (const auto& part : node.parts) {
    TRY(const Value value, evaluate(*part, scope));
    TRY_STATUS(charge(budget_, weight_of(value)));
    TRY(const Text text, printed(value));
    out.append(text);
  }
  return Value(std::move(out));
}

Fallible<Value> Evaluator::compare_chain(const Expression& node, Scope& scope) {
  TRY(Value left, evaluate(*node.parts[0], scope));
  for (std::size_t i = 0; i < node.operations.size(); ++i) {
    TRY(Value right, evaluate(*node.parts[i + 1], scope));
    // Texts are compared in no time, containers part by part.
    const bool whole = left.text() == nullptr || right.text() == nullptr;
    TRY_STATUS(charge(budget_, whole ? std::min(weight_of(left), weight_of(right)) : 0));
    bool holds = false;
    switch (node.operations[i]) {
      case Operation::kEqual:
        holds = equal(left, right);
        break;
      case Operation::kNotEqual:
        holds = !equal(left, right);
        break;
      case Operation::kIn:
      case Operation::kNotIn: {
        TRY_STATUS(charge(budget_, right.dict() == nullptr ? weight_of(right) / 8 : 0));
        TRY(const bool inside, contains(right, left));
        holds = inside == (node.operations[i] == Operation::kIn);
        break;
      }
      default: {
        TRY(const int order, compare(left, right));
        const auto operation = node.operations[i];
        holds = operation == Operation::kLess        ? order < 0
                : operation == Operation::kLessEqual ? order <= 0
                : operation == Operation::kGreater   ? order > 0
                                                     : order >= 0;
      }
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

}  // namespace penstock::jinja
