// The parsed template: statements and expressions, immutable after parsing.
//
// Invariants: an expression nests at most kDepthMax deep, blocks at most kBlockDepthMax; macros
// stand at the top level; names of filters, tests and statements are known ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/prompt/jinja/value.h"

namespace penstock::jinja {

inline constexpr int kBlockDepthMax = 64;

struct Expression;
using ExpressionPointer = std::unique_ptr<const Expression>;

struct Arguments {
  std::vector<ExpressionPointer> positional;
  std::vector<std::pair<std::string, ExpressionPointer>> keyword;
};

enum class Operation : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expression {
  enum class Kind : std::uint8_t {
    kConstant,     // value
    kName,         // name
    kLoop,         // loop.name
    kAttribute,    // parts[0].name
    kItem,         // parts[0][parts[1]]
    kSlice,        // parts[0][parts[1]:parts[2]:parts[3]], the bounds may be null
    kCall,         // parts[0](arguments)
    kFilter,       // parts[0] | name(arguments); parts[0] is null at the head of a block's filters
    kTest,         // parts[0] is name(arguments)
    kList,         // parts
    kTuple,        // parts
    kDict,         // parts: key, value, key, value
    kConcatenate,  // parts
    kNot,          // parts[0]
    kNegative,     // parts[0]
    kPositive,     // parts[0]
    kAnd,          // parts
    kOr,           // parts
    kConditional,  // parts[1] if parts[0] else parts[2], which may be null
    kBinary,       // parts[0] operations[0] parts[1]
    kCompare,      // parts[0] operations[0] parts[1] operations[1] parts[2] ...
  };
  Kind kind = Kind::kConstant;
  int line = 0;
  int depth = 1;
  std::string name;
  Value value;
  std::vector<ExpressionPointer> parts;
  std::vector<Operation> operations;
  Arguments arguments;
};

struct Statement;
using Body = std::vector<std::unique_ptr<const Statement>>;

struct MacroStatement {
  std::string name;
  struct Parameter {
    std::string name;
    ExpressionPointer fallback;  // may be null
  };
  std::vector<Parameter> parameters;
  Body body;
};

// What `set` and `for` write to: one name, several to unpack into, or name.attribute.
struct Target {
  std::vector<std::string> names;
  bool unpacks = false;
  std::string attribute;
};

struct Statement {
  enum class Kind : std::uint8_t {
    kText,      // text
    kOutput,    // expression
    kIf,        // branches, otherwise
    kFor,       // target, expression, condition (may be null), body, otherwise
    kSet,       // target, expression
    kSetBlock,  // target, expression: filters (may be null), body
    kMacro,     // macro
    kWith,      // bindings, body
    kFilter,    // expression: filters, body
    kGroup,     // body
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  Text text;
  ExpressionPointer expression;
  ExpressionPointer condition;
  Target target;
  Body body;
  Body otherwise;
  std::vector<std::pair<ExpressionPointer, Body>> branches;
  std::vector<std::pair<std::string, ExpressionPointer>> bindings;
  MacroStatement macro;
};

}  // namespace penstock::jinja
