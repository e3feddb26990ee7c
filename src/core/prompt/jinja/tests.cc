#include <algorithm>

#include "core/prompt/jinja/call_input.h"

namespace penstock::jinja {
namespace {

using Tested = Fallible<bool>;

bool is_number(const Value& value) {
  return value.integer() != nullptr || value.is<double>() || value.is<bool>() ||
         value.is<BigInteger>();
}

Fallible<std::int64_t> remainder(const Value& value, std::int64_t divisor) {
  const auto* integer = value.integer();
  if (integer == nullptr || divisor == 0 || divisor == -1) {
    return failure(fmt::format("an integer is expected, not a {}", type_name(value)));
  }
  return *integer % divisor;
}

template <typename Compare>
Tested ordered(CallInput& in, Compare holds) {
  if (!in.has(0)) return failure(fmt::format("the test '{}' needs an argument", in.name));
  TRY(const int order, compare(in.subject, *in.arguments[0]));
  return holds(order);
}
Tested same(CallInput& in) {
  if (!in.has(0)) return failure(fmt::format("the test '{}' needs an argument", in.name));
  return equal(in.subject, *in.arguments[0]);
}
Tested differs(CallInput& in) {
  TRY(const bool equals, same(in));
  return !equals;
}
Tested less(CallInput& in) {
  return ordered(in, [](int order) { return order < 0; });
}
Tested at_most(CallInput& in) {
  return ordered(in, [](int order) { return order <= 0; });
}
Tested more(CallInput& in) {
  return ordered(in, [](int order) { return order > 0; });
}
Tested at_least(CallInput& in) {
  return ordered(in, [](int order) { return order >= 0; });
}
Tested is_case(CallInput& in, Case which) {
  TRY(const Text text, printed(in.subject));
  const Text changed = with_case(text, which);
  const Text other = with_case(text, which == Case::kUpper ? Case::kLower : Case::kUpper);
  return changed.bytes() == text.bytes() && other.bytes() != text.bytes();
}

struct Test {
  std::string_view name;
  Tested (*run)(CallInput&);
};

constexpr Test kTests[] = {
    {"defined", [](CallInput& in) -> Tested { return !in.subject.is<Undefined>(); }},
    {"undefined", [](CallInput& in) -> Tested { return in.subject.is<Undefined>(); }},
    {"none", [](CallInput& in) -> Tested { return in.subject.is<None>(); }},
    {"boolean", [](CallInput& in) -> Tested { return in.subject.is<bool>(); }},
    {"true", [](CallInput& in) -> Tested { return in.subject.is<bool>() && truthy(in.subject); }},
    {"false", [](CallInput& in) -> Tested { return in.subject.is<bool>() && !truthy(in.subject); }},
    {"integer",
     [](CallInput& in) -> Tested {
       return in.subject.integer() != nullptr || in.subject.is<BigInteger>();
     }},
    {"float", [](CallInput& in) -> Tested { return in.subject.is<double>(); }},
    {"number", [](CallInput& in) -> Tested { return is_number(in.subject); }},
    {"string", [](CallInput& in) -> Tested { return in.subject.text() != nullptr; }},
    {"mapping", [](CallInput& in) -> Tested { return in.subject.dict() != nullptr; }},
    {"iterable", [](CallInput& in) -> Tested { return items_of(in.subject).has_value(); }},
    {"sequence", [](CallInput& in) -> Tested { return items_of(in.subject).has_value(); }},
    {"callable",
     [](CallInput& in) -> Tested {
       return in.subject.is<Function>() || in.subject.is<const MacroStatement*>();
     }},
    {"sameas",
     [](CallInput& in) -> Tested {
       TRY(const bool equals, same(in));
       return equals && in.subject.variant().index() == in.arguments[0]->variant().index();
     }},
    {"odd",
     [](CallInput& in) -> Tested {
       TRY(const auto rest, remainder(in.subject, 2));
       return rest != 0;
     }},
    {"even",
     [](CallInput& in) -> Tested {
       TRY(const auto rest, remainder(in.subject, 2));
       return rest == 0;
     }},
    {"divisibleby",
     [](CallInput& in) -> Tested {
       TRY(const auto divisor, in.integer(0, 0));
       if (divisor == 1 || divisor == -1) return in.subject.integer() != nullptr;
       TRY(const auto rest, remainder(in.subject, divisor));
       return rest == 0;
     }},
    {"lower", [](CallInput& in) { return is_case(in, Case::kLower); }},
    {"upper", [](CallInput& in) { return is_case(in, Case::kUpper); }},
    {"in",
     [](CallInput& in) -> Tested {
       if (!in.has(0)) return failure("the test 'in' needs an argument");
       return contains(*in.arguments[0], in.subject);
     }},
    {"eq", same},
    {"equalto", same},
    {"==", same},
    {"ne", differs},
    {"!=", differs},
    {"lt", less},
    {"lessthan", less},
    {"<", less},
    {"le", at_most},
    {"<=", at_most},
    {"gt", more},
    {"greaterthan", more},
    {">", more},
    {"ge", at_least},
    {">=", at_least},
};

}  // namespace

bool is_test(std::string_view name) {
  return std::ranges::find(kTests, name, &Test::name) != std::end(kTests);
}

Fallible<bool> apply_test(std::string_view name, const Value& subject,
                          const CallArguments& arguments, Budget& budget) {
  const Test* test = std::ranges::find(kTests, name, &Test::name);
  if (test == std::end(kTests)) return failure(fmt::format("the test '{}' isn't supported", name));
  CallInput input{name, subject, {}, arguments, budget};
  TRY_STATUS(bind({"other"}, input));
  // What looks at all of a value pays for it.
  const bool looks = !arguments.positional.empty() || name == "lower" || name == "upper" ||
                     ((name == "iterable" || name == "sequence") && subject.text() != nullptr);
  if (looks) TRY_STATUS(charge(budget, weight_of(subject)));
  return test->run(input);
}

}  // namespace penstock::jinja
