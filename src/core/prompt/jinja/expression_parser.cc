#include "core/prompt/jinja/expression_parser.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <span>

#include "base/result.h"
#include "core/prompt/jinja/builtins.h"
#include "core/prompt/jinja/depth_guard.h"

namespace penstock::jinja {
namespace {

using Kind = Expression::Kind;
using Word = Token::Kind;

struct Operator {
  std::string_view text;
  Operation operation;
};
constexpr Operator kSums[] = {{"+", Operation::kAdd}, {"-", Operation::kSubtract}};
constexpr Operator kProducts[] = {{"*", Operation::kMultiply},
                                  {"/", Operation::kDivide},
                                  {"//", Operation::kFloorDivide},
                                  {"%", Operation::kModulo}};
constexpr Operator kPowers[] = {{"**", Operation::kPower}};
constexpr Operator kComparisons[] = {{"==", Operation::kEqual},  {"!=", Operation::kNotEqual},
                                     {"<", Operation::kLess},    {"<=", Operation::kLessEqual},
                                     {">", Operation::kGreater}, {">=", Operation::kGreaterEqual}};

std::unique_ptr<Expression> make(Kind kind, int line) {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  return node;
}

// A node whose parts are all there.
Fallible<ExpressionPointer> made(std::unique_ptr<Expression> node) {
  const auto below = [&](const ExpressionPointer& part) {
    if (part != nullptr) node->depth = std::max(node->depth, 1 + part->depth);
  };
  std::ranges::for_each(node->parts, below);
  std::ranges::for_each(node->arguments.positional, below);
  for (const auto& argument : node->arguments.keyword)
    below(argument.second);
  if (node->depth > kDepthMax) {
    return std::unexpected(Failure{fmt::format("an expression nests more than {} deep", kDepthMax),
                                   node->line, false});
  }
  return node;
}

const Operator* find_operator(std::span<const Operator> operators, const Token& token) {
  if (token.kind != Word::kOperator) return nullptr;
  const auto found = std::ranges::find(operators, std::string_view(token.text), &Operator::text);
  return found == operators.end() ? nullptr : &*found;
}

}  // namespace

bool ExpressionParser::at_tuple_end() const {
  return in_.is(Word::kVariableEnd) || in_.is(Word::kBlockEnd) || in_.is_op(")") || in_.is_op("=");
}

Fallible<ExpressionPointer> ExpressionParser::tuple(Conditional conditional) {
  const auto one = [&] { return conditional == Conditional::kAllowed ? expression() : any_or(); };
  const int line = in_.line();
  TRY(auto first, one());
  if (!in_.is_op(",")) return first;
  auto node = make(Kind::kTuple, line);
  node->parts.push_back(std::move(first));
  while (in_.skip_op(",") && !at_tuple_end()) {
    TRY(auto next, one());
    node->parts.push_back(std::move(next));
  }
  return made(std::move(node));
}

Fallible<ExpressionPointer> ExpressionParser::expression() {
  const DepthGuard deeper(depth_);
  if (depth_ > kDepthMax) {
    return in_.fail(fmt::format("an expression nests more than {} deep", kDepthMax));
  }
  TRY(auto value, any_or());
  while (in_.is_word("if")) {
    auto node = make(Kind::kConditional, in_.line());
    in_.take();
    TRY(auto condition, any_or());
    node->parts.push_back(std::move(condition));
    node->parts.push_back(std::move(value));
    node->parts.emplace_back();
    if (in_.skip_word("else")) {
      TRY(auto otherwise, expression());
      node->parts[2] = std::move(otherwise);
    }
    TRY(value, made(std::move(node)));
  }
  return value;
}

Fallible<ExpressionPointer> ExpressionParser::any_or() {
  TRY(auto left, all_and());
  if (!in_.is_word("or")) return left;
  auto node = make(Kind::kOr, in_.line());
  node->parts.push_back(std::move(left));
  while (in_.skip_word("or")) {
    TRY(auto right, all_and());
    node->parts.push_back(std::move(right));
  }
  return made(std::move(node));
}

Fallible<ExpressionPointer> ExpressionParser::all_and() {
  TRY(auto left, negation());
  if (!in_.is_word("and")) return left;
  auto node = make(Kind::kAnd, in_.line());
  node->parts.push_back(std::move(left));
  while (in_.skip_word("and")) {
    TRY(auto right, negation());
    node->parts.push_back(std::move(right));
  }
  return made(std::move(node));
}

Fallible<ExpressionPointer> ExpressionParser::negation() {
  if (!in_.is_word("not")) return comparison();
  const DepthGuard deeper(depth_);
  if (depth_ > kDepthMax) {
    return in_.fail(fmt::format("an expression nests more than {} deep", kDepthMax));
  }
  auto node = make(Kind::kNot, in_.line());
  in_.take();
  TRY(auto operand, negation());
  node->parts.push_back(std::move(operand));
  return made(std::move(node));
}

Fallible<ExpressionPointer> ExpressionParser::comparison() {
  TRY(auto left, binary(0));
  auto node = make(Kind::kCompare, in_.line());
  node->parts.push_back(std::move(left));
  while (true) {
    if (const Operator* op = find_operator(kComparisons, in_.now())) {
      node->operations.push_back(op->operation);
      in_.take();
    } else if (in_.skip_word("in")) {
      node->operations.push_back(Operation::kIn);
    } else if (in_.is_word("not") && in_.ahead().kind == Word::kName && in_.ahead().text == "in") {
      in_.take();
      in_.take();
      node->operations.push_back(Operation::kNotIn);
    } else {
      break;
    }
    TRY(auto right, binary(0));
    node->parts.push_back(std::move(right));
  }
  if (node->operations.empty()) return std::move(node->parts[0]);
  return made(std::move(node));
}

// Left to right: level 0 is + and -, above ~; 1 is * / // %, above **.
Fallible<ExpressionPointer> ExpressionParser::binary(int level) {
  const std::span<const Operator> operators = level == 0   ? std::span<const Operator>(kSums)
                                              : level == 1 ? std::span<const Operator>(kProducts)
                                                           : std::span<const Operator>(kPowers);
  const auto operand = [&] {
    return level == 0 ? concatenation() : level == 1 ? binary(2) : unary(true);
  };
  TRY(auto left, operand());
  while (const Operator* op = find_operator(operators, in_.now())) {
    auto node = make(Kind::kBinary, in_.line());
    node->operations.push_back(op->operation);
    in_.take();
    TRY(auto right, operand());
    node->parts.push_back(std::move(left));
    node->parts.push_back(std::move(right));
    TRY(left, made(std::move(node)));
  }
  return left;
}

Fallible<ExpressionPointer> ExpressionParser::concatenation() {
  TRY(auto left, binary(1));
  if (!in_.is_op("~")) return left;
  auto node = make(Kind::kConcatenate, in_.line());
  node->parts.push_back(std::move(left));
  while (in_.skip_op("~")) {
    TRY(auto right, binary(1));
    node->parts.push_back(std::move(right));
  }
  return made(std::move(node));
}

Fallible<ExpressionPointer> ExpressionParser::unary(bool with_filters) {
  const DepthGuard deeper(depth_);
  if (depth_ > kDepthMax) {
    return in_.fail(fmt::format("an expression nests more than {} deep", kDepthMax));
  }
  ExpressionPointer value;
  if (in_.is_op("-") || in_.is_op("+")) {
    auto node = make(in_.is_op("-") ? Kind::kNegative : Kind::kPositive, in_.line());
    in_.take();
    TRY(auto operand, unary(false));
    node->parts.push_back(std::move(operand));
    TRY(value, made(std::move(node)));
  } else {
    TRY(value, primary());
  }
  TRY(value, postfix(std::move(value)));
  return with_filters ? filters(std::move(value)) : std::move(value);
}

Fallible<ExpressionPointer> ExpressionParser::primary() {
  const int line = in_.line();
  switch (in_.now().kind) {
    case Word::kString:
      return literal_string();
    case Word::kInteger:
    case Word::kFloat:
      return number();
    case Word::kOperator:
      return brackets();
    case Word::kName:
      break;
    default:
      return in_.unexpected("a value");
  }
  const std::string name = in_.take().text;
  auto node = make(Kind::kConstant, line);
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    node->value = name == "true" || name == "True";
  } else if (name == "none" || name == "None") {
    node->value = None{};
  } else if (name == "loop") {
    // Its attributes only, so that no loop outlives its run.
    if (in_.is_op(".")) {
      in_.take();
      TRY(node->name, in_.need_name());
      node->kind = Kind::kLoop;
    } else {
      return in_.fail("'loop' can't be used but for its attributes, as in loop.index");
    }
  } else {
    node->kind = Kind::kName;
    node->name = name;
  }
  return made(std::move(node));
}

// Neighbouring strings are one, as in Python.
Fallible<ExpressionPointer> ExpressionParser::literal_string() {
  auto node = make(Kind::kConstant, in_.line());
  std::string text;
  while (in_.is(Word::kString))
    text += in_.take().text;
  node->value = Value::of(text, Origin::kTemplate);
  return made(std::move(node));
}

Fallible<ExpressionPointer> ExpressionParser::number() {
  auto node = make(Kind::kConstant, in_.line());
  const Token token = in_.take();
  if (token.kind == Word::kFloat) {
    node->value = std::strtod(token.text.c_str(), nullptr);
    return made(std::move(node));
  }
  std::string_view digits = token.text;
  int base = 10;
  if (digits.size() > 1 && digits[0] == '0' && (digits[1] | 0x20) >= 'b') {
    base = (digits[1] | 0x20) == 'x' ? 16 : (digits[1] | 0x20) == 'o' ? 8 : 2;
    digits.remove_prefix(2);
  }
  std::int64_t integer = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), integer, base);
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) {
    return in_.fail(fmt::format("{} is no integer of 64 bits", token.text));
  }
  node->value = integer;
  return made(std::move(node));
}

Fallible<ExpressionPointer> ExpressionParser::brackets() {
  const int line = in_.line();
  if (in_.is_op("[")) {
    in_.take();
    return list_until("]", Kind::kList);
  }
  if (in_.is_op("{")) return dict();
  if (!in_.skip_op("(")) return in_.unexpected("a value");
  if (in_.skip_op(")")) return made(make(Kind::kTuple, line));
  TRY(auto inner, tuple());
  TRY_STATUS(in_.need_op(")"));
  return inner;
}

// "a, b]" behind the opening bracket.
Fallible<ExpressionPointer> ExpressionParser::list_until(std::string_view close, Kind kind) {
  auto node = make(kind, in_.line());
  while (!in_.is_op(close)) {
    TRY(auto part, expression());
    node->parts.push_back(std::move(part));
    if (!in_.is_op(close)) TRY_STATUS(in_.need_op(","));
  }
  in_.take();
  return made(std::move(node));
}

Fallible<ExpressionPointer> ExpressionParser::dict() {
  auto node = make(Kind::kDict, in_.line());
  in_.take();
  while (!in_.is_op("}")) {
    TRY(auto key, expression());
    TRY_STATUS(in_.need_op(":"));
    TRY(auto value, expression());
    node->parts.push_back(std::move(key));
    node->parts.push_back(std::move(value));
    if (!in_.is_op("}")) TRY_STATUS(in_.need_op(","));
  }
  in_.take();
  return made(std::move(node));
}

Fallible<ExpressionPointer> ExpressionParser::postfix(ExpressionPointer subject) {
  while (true) {
    if (in_.is_op(".")) {
      TRY(subject, attribute(std::move(subject)));
    } else if (in_.is_op("[")) {
      TRY(subject, item(std::move(subject)));
    } else if (in_.is_op("(")) {
      auto node = make(Kind::kCall, in_.line());
      TRY(node->arguments, arguments());
      node->parts.push_back(std::move(subject));
      TRY(subject, made(std::move(node)));
    } else {
      return subject;
    }
  }
}

Fallible<ExpressionPointer> ExpressionParser::attribute(ExpressionPointer subject) {
  auto node = make(Kind::kAttribute, in_.line());
  in_.take();
  if (in_.is(Word::kInteger)) {
    node->kind = Kind::kItem;
    TRY(auto index, number());
    node->parts.push_back(std::move(subject));
    node->parts.push_back(std::move(index));
    return made(std::move(node));
  }
  TRY(node->name, in_.need_name());
  node->parts.push_back(std::move(subject));
  return made(std::move(node));
}

// [index] or [start:stop:step]
Fallible<ExpressionPointer> ExpressionParser::item(ExpressionPointer subject) {
  auto node = make(Kind::kItem, in_.line());
  in_.take();
  node->parts.push_back(std::move(subject));
  bool slice = false;
  node->parts.emplace_back();
  while (!in_.is_op("]")) {
    if (in_.skip_op(":")) {
      slice = true;
      node->parts.emplace_back();
      if (node->parts.size() > 4) return in_.fail("a slice has at most three parts");
    } else {
      if (node->parts.back() != nullptr) return in_.unexpected("']'");
      TRY(node->parts.back(), expression());
    }
  }
  in_.take();
  if (!slice && node->parts[1] == nullptr) return in_.fail("[] needs an index");
  if (slice) {
    node->kind = Kind::kSlice;
    node->parts.resize(4);
  }
  return made(std::move(node));
}

Fallible<Arguments> ExpressionParser::arguments() {
  Arguments out;
  TRY_STATUS(in_.need_op("("));
  while (!in_.is_op(")")) {
    if (in_.is_op("*") || in_.is_op("**")) {
      return in_.fail("* and ** in the arguments of a call aren't supported");
    }
    const bool keyword =
        in_.is(Word::kName) && in_.ahead().kind == Word::kOperator && in_.ahead().text == "=";
    std::string name;
    if (keyword) {
      name = in_.take().text;
      in_.take();
    } else if (!out.keyword.empty()) {
      return in_.fail("an argument without a name stands behind one with a name");
    }
    TRY(auto value, expression());
    if (keyword) {
      out.keyword.emplace_back(std::move(name), std::move(value));
    } else {
      out.positional.push_back(std::move(value));
    }
    if (!in_.is_op(")")) TRY_STATUS(in_.need_op(","));
  }
  in_.take();
  return out;
}

Fallible<ExpressionPointer> ExpressionParser::filters(ExpressionPointer subject) {
  if (subject == nullptr && !in_.is_op("|")) {
    TRY(subject, filter(nullptr));
  }
  while (true) {
    if (in_.skip_op("|")) {
      TRY(subject, filter(std::move(subject)));
    } else if (in_.is_word("is")) {
      TRY(subject, test(std::move(subject)));
    } else if (in_.is_op("(")) {
      TRY(subject, postfix(std::move(subject)));
    } else {
      return subject;
    }
  }
}

Fallible<ExpressionPointer> ExpressionParser::filter(ExpressionPointer subject) {
  auto node = make(Kind::kFilter, in_.line());
  TRY(node->name, in_.need_name());
  if (!is_filter(node->name)) {
    return std::unexpected(
        Failure{fmt::format("the filter '{}' isn't supported", node->name), node->line, false});
  }
  node->parts.push_back(std::move(subject));
  if (in_.is_op("(")) {
    TRY(node->arguments, arguments());
  }
  return made(std::move(node));
}

Fallible<ExpressionPointer> ExpressionParser::test(ExpressionPointer subject) {
  auto node = make(Kind::kTest, in_.line());
  in_.take();
  const bool negated = in_.skip_word("not");
  TRY(node->name, in_.need_name());
  if (!is_test(node->name)) {
    return std::unexpected(
        Failure{fmt::format("the test '{}' isn't supported", node->name), node->line, false});
  }
  node->parts.push_back(std::move(subject));
  if (in_.is_op("(")) {
    TRY(node->arguments, arguments());
  } else {
    constexpr std::string_view kAfter[] = {"else", "or", "and", "if", "is", "not", "in"};
    const bool word =
        in_.is(Word::kName) && std::ranges::find(kAfter, in_.now().text) == std::end(kAfter);
    const bool literal = in_.is(Word::kString) || in_.is(Word::kInteger) || in_.is(Word::kFloat) ||
                         in_.is_op("[") || in_.is_op("{");
    if (word || literal) {
      TRY(auto argument, primary());
      TRY(argument, postfix(std::move(argument)));
      node->arguments.positional.push_back(std::move(argument));
    }
  }
  TRY(auto tested, made(std::move(node)));
  if (!negated) return tested;
  auto inverse = make(Kind::kNot, tested->line);
  inverse->parts.push_back(std::move(tested));
  return made(std::move(inverse));
}

}  // namespace penstock::jinja
