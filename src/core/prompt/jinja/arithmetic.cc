// + - * / // % ** as Python has them, within 64 bits.
#include <fmt/format.h>
#include <cmath>

#include "base/result.h"
#include "core/prompt/jinja/evaluator.h"

namespace penstock::jinja {
namespace {

constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};

std::optional<std::int64_t> as_integer(const Value& value) {
  if (const auto* integer = value.integer()) return *integer;
  if (const bool* flag = std::get_if<bool>(&value.variant())) return *flag ? 1 : 0;
  return {};
}

Fallible<std::int64_t> power(std::int64_t base, std::int64_t exponent) {
  std::int64_t out = 1;
  // Beyond 63 doublings only 0, 1 and -1 stay within 64 bits.
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  for (std::int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(out, base, &out)) return failure("a number beyond 64 bits");
  }
  return out;
}

Fallible<Value> of_integers(Operation operation, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  bool overflow = false;
  switch (operation) {
    case Operation::kAdd:
      overflow = __builtin_add_overflow(a, b, &out);
      break;
    case Operation::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &out);
      break;
    case Operation::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &out);
      break;
    case Operation::kPower: {
      if (b < 0) return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
      TRY(out, power(a, b));
      break;
    }
    default: {
      if (b == 0) return failure("a division by zero");
      if (operation == Operation::kDivide) {
        return Value(static_cast<double>(a) / static_cast<double>(b));
      }
      if (b == -1) {
        overflow = operation == Operation::kFloorDivide && __builtin_sub_overflow(0, a, &out);
        break;
      }
      // Python rounds down, and the remainder has the divisor's sign.
      const bool down = a % b != 0 && (a < 0) != (b < 0);
      out = operation == Operation::kFloorDivide ? a / b - (down ? 1 : 0) : a % b + (down ? b : 0);
    }
  }
  if (overflow) return failure("a number beyond 64 bits");
  return Value(out);
}

Fallible<Value> of_reals(Operation operation, double a, double b) {
  switch (operation) {
    case Operation::kAdd:
      return Value(a + b);
    case Operation::kSubtract:
      return Value(a - b);
    case Operation::kMultiply:
      return Value(a * b);
    case Operation::kPower:
      return Value(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) return failure("a division by zero");
  if (operation == Operation::kDivide) return Value(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return operation == Operation::kModulo ? Value(rest) : Value(std::floor((a - rest) / b + 0.5));
}

}  // namespace

Fallible<Value> Evaluator::arithmetic(Operation operation, const Value& left, const Value& right) {
  const auto a = as_integer(left);
  const auto b = as_integer(right);
  if (a && b) return of_integers(operation, *a, *b);
  const auto real = [](const Value& value, const std::optional<std::int64_t>& integer) {
    if (integer) return std::optional<double>(static_cast<double>(*integer));
    const auto* number = std::get_if<double>(&value.variant());
    return number == nullptr ? std::optional<double>() : std::optional<double>(*number);
  };
  const auto x = real(left, a);
  const auto y = real(right, b);
  if (x && y) return of_reals(operation, *x, *y);
  if (operation == Operation::kAdd) {
    if (left.text() != nullptr && right.text() != nullptr) {
      TRY_STATUS(charge(budget_, left.text()->size() + right.text()->size()));
      Text out = *left.text();
      out.append(*right.text());
      return Value(std::move(out));
    }
    const List* first = left.list();
    const List* second = right.list();
    if (first != nullptr && second != nullptr && first->tuple == second->tuple) {
      TRY_STATUS(charge(budget_, sizeof(Value) * (first->items.size() + second->items.size())));
      std::vector<Value> items = first->items;
      items.insert(items.end(), second->items.begin(), second->items.end());
      return make_list(std::move(items), first->tuple);
    }
  }
  if (operation == Operation::kMultiply && (a || b) && (left.text() || right.text())) {
    const Text& text = a ? *right.text() : *left.text();
    const auto times = static_cast<std::size_t>(std::max<std::int64_t>(a ? *a : *b, 0));
    if (!text.empty() && times > budget_.bytes / text.size()) {
      TRY_STATUS(charge(budget_, budget_.bytes + 1));
    }
    TRY_STATUS(charge(budget_, text.size() * times));
    Text out;
    for (std::size_t i = 0; i < times && !text.empty(); ++i)
      out.append(text);
    return Value(std::move(out));
  }
  const Value& undefined = left.is<Undefined>() ? left : right;
  if (undefined.is<Undefined>()) {
    return failure(fmt::format("'{}' is undefined and can't be used with {}",
                               std::get<Undefined>(undefined.variant()).name,
                               kSigns[static_cast<std::size_t>(operation)]));
  }
  return failure(fmt::format("{} isn't supported between a {} and a {}",
                             kSigns[static_cast<std::size_t>(operation)], type_name(left),
                             type_name(right)));
}

}  // namespace penstock::jinja
