#include "core/prompt/jinja/parser.h"

#include <algorithm>
#include <initializer_list>

#include "base/result.h"
#include "core/prompt/jinja/expression_parser.h"

namespace penstock::jinja {
namespace {

using Kind = Statement::Kind;
using Word = Token::Kind;
using StatementPointer = std::unique_ptr<Statement>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : in_(std::move(tokens)), expressions_(in_) {}

  Fallible<Body> run() {
    TRY(Body body, body_until({}));
    return body;
  }

 private:
  // Statements up to one of the tags; its "{%" is taken, its name is not.
  Fallible<Body> body_until(std::initializer_list<std::string_view> ends);
  Fallible<StatementPointer> statement();
  Fallible<StatementPointer> if_statement(StatementPointer out);
  Fallible<StatementPointer> for_statement(StatementPointer out);
  Fallible<StatementPointer> set_statement(StatementPointer out);
  Fallible<StatementPointer> macro_statement(StatementPointer out);
  Fallible<StatementPointer> with_statement(StatementPointer out);
  Fallible<StatementPointer> filter_statement(StatementPointer out);
  Fallible<Target> target();
  Fallible<void> block_end() { return in_.need(Word::kBlockEnd, "'%}'"); }
  // The body of a block and its end tag.
  Fallible<Body> block(std::string_view end) {
    TRY(Body body, body_until({end}));
    in_.take();
    TRY_STATUS(block_end());
    return body;
  }

  TokenStream in_;
  ExpressionParser expressions_;
  int depth_ = 0;
  int scopes_ = 0;  // loops and macros around
  int loops_ = 0;   // loops around, in the innermost macro
};

Fallible<Body> Parser::body_until(std::initializer_list<std::string_view> ends) {
  Body body;
  if (++depth_ > kBlockDepthMax) {
    return in_.fail(fmt::format("blocks nest more than {} deep", kBlockDepthMax));
  }
  while (true) {
    auto out = std::make_unique<Statement>();
    out->line = in_.line();
    if (in_.is(Word::kData)) {
      out->text = Text(in_.take().text, Origin::kTemplate);
    } else if (in_.is(Word::kVariableBegin)) {
      in_.take();
      out->kind = Kind::kOutput;
      TRY(out->expression, expressions_.tuple());
      TRY_STATUS(in_.need(Word::kVariableEnd, "'}}'"));
    } else if (in_.is(Word::kBlockBegin)) {
      in_.take();
      const auto is_end = [&](std::string_view end) { return in_.is_word(end); };
      if (std::ranges::any_of(ends, is_end)) break;
      TRY(out, statement());
    } else if (ends.size() == 0) {
      break;
    } else {
      return in_.unexpected(fmt::format("{{% {} %}}", *(ends.end() - 1)));
    }
    body.push_back(std::move(out));
  }
  --depth_;
  return body;
}

Fallible<StatementPointer> Parser::statement() {
  auto out = std::make_unique<Statement>();
  out->line = in_.line();
  TRY(const std::string word, in_.need_name());
  if (word == "if") return if_statement(std::move(out));
  if (word == "for") return for_statement(std::move(out));
  if (word == "set") return set_statement(std::move(out));
  if (word == "macro") return macro_statement(std::move(out));
  if (word == "with") return with_statement(std::move(out));
  if (word == "filter") return filter_statement(std::move(out));
  if (word == "generation") {  // marks what training looks at
    out->kind = Kind::kGroup;
    TRY_STATUS(block_end());
    TRY(out->body, block("endgeneration"));
    return out;
  }
  if (word == "break" || word == "continue") {
    if (loops_ == 0) return in_.fail(fmt::format("{{% {} %}} stands outside of a loop", word));
    out->kind = word == "break" ? Kind::kBreak : Kind::kContinue;
    TRY_STATUS(block_end());
    return out;
  }
  return in_.fail(
      fmt::format("{{% {} %}} isn't supported here; there are if, for, set, macro, "
                  "with, filter, generation, break, continue and raw",
                  word));
}

Fallible<StatementPointer> Parser::if_statement(StatementPointer out) {
  out->kind = Kind::kIf;
  while (true) {
    TRY(auto condition, expressions_.tuple(ExpressionParser::Conditional::kNot));
    TRY_STATUS(block_end());
    TRY(Body body, body_until({"elif", "else", "endif"}));
    out->branches.emplace_back(std::move(condition), std::move(body));
    if (in_.skip_word("elif")) continue;
    if (in_.skip_word("else")) {
      TRY_STATUS(block_end());
      TRY(out->otherwise, body_until({"endif"}));
    }
    in_.take();
    TRY_STATUS(block_end());
    return out;
  }
}

Fallible<StatementPointer> Parser::for_statement(StatementPointer out) {
  out->kind = Kind::kFor;
  TRY(out->target, target());
  if (!out->target.attribute.empty()) return in_.fail("a loop can't set an attribute");
  TRY_STATUS(in_.need_word("in"));
  TRY(out->expression, expressions_.tuple(ExpressionParser::Conditional::kNot));
  if (in_.skip_word("if")) {
    TRY(out->condition, expressions_.expression());
  }
  if (in_.is_word("recursive")) return in_.fail("recursive loops aren't supported");
  TRY_STATUS(block_end());
  ++scopes_;
  ++loops_;
  TRY(out->body, body_until({"else", "endfor"}));
  --loops_;
  if (in_.skip_word("else")) {
    TRY_STATUS(block_end());
    TRY(out->otherwise, body_until({"endfor"}));
  }
  --scopes_;
  in_.take();
  TRY_STATUS(block_end());
  return out;
}

Fallible<StatementPointer> Parser::set_statement(StatementPointer out) {
  out->kind = Kind::kSet;
  TRY(out->target, target());
  if (in_.skip_op("=")) {
    TRY(out->expression, expressions_.tuple());
    TRY_STATUS(block_end());
    return out;
  }
  out->kind = Kind::kSetBlock;
  if (out->target.unpacks) return in_.fail("a block can be set to one name only");
  if (in_.skip_op("|")) {
    TRY(out->expression, expressions_.filters(nullptr));
  }
  TRY_STATUS(block_end());
  TRY(out->body, block("endset"));
  return out;
}

Fallible<StatementPointer> Parser::macro_statement(StatementPointer out) {
  out->kind = Kind::kMacro;
  // So a macro sees the template's variables and nothing that may be gone when it is called.
  if (scopes_ > 0) return in_.fail("macros inside of loops, macros and with aren't supported");
  TRY(out->macro.name, in_.need_name());
  TRY_STATUS(in_.need_op("("));
  while (!in_.is_op(")")) {
    MacroStatement::Parameter parameter;
    TRY(parameter.name, in_.need_name());
    if (in_.skip_op("=")) {
      TRY(parameter.fallback, expressions_.expression());
    } else if (!out->macro.parameters.empty() && out->macro.parameters.back().fallback != nullptr) {
      return in_.fail("a parameter without a default stands behind one with a default");
    }
    out->macro.parameters.push_back(std::move(parameter));
    if (!in_.is_op(")")) TRY_STATUS(in_.need_op(","));
  }
  in_.take();
  TRY_STATUS(block_end());
  ++scopes_;
  TRY(out->macro.body, block("endmacro"));
  --scopes_;
  return out;
}

Fallible<StatementPointer> Parser::with_statement(StatementPointer out) {
  out->kind = Kind::kWith;
  while (!in_.is(Word::kBlockEnd)) {
    TRY(std::string name, in_.need_name());
    TRY_STATUS(in_.need_op("="));
    TRY(auto value, expressions_.expression());
    out->bindings.emplace_back(std::move(name), std::move(value));
    if (!in_.is(Word::kBlockEnd)) TRY_STATUS(in_.need_op(","));
  }
  TRY_STATUS(block_end());
  ++scopes_;
  TRY(out->body, block("endwith"));
  --scopes_;
  return out;
}

Fallible<StatementPointer> Parser::filter_statement(StatementPointer out) {
  out->kind = Kind::kFilter;
  TRY(out->expression, expressions_.filters(nullptr));
  TRY_STATUS(block_end());
  TRY(out->body, block("endfilter"));
  return out;
}

Fallible<Target> Parser::target() {
  Target out;
  const bool brackets = in_.skip_op("(");
  do {
    if (out.unpacks && (in_.is_op("=") || in_.is_word("in") || in_.is_op(")"))) break;
    TRY(std::string name, in_.need_name());
    if (name == "loop" || name == "true" || name == "false" || name == "none") {
      return in_.fail(fmt::format("'{}' can't be set", name));
    }
    out.names.push_back(std::move(name));
    if (in_.is_op(",")) out.unpacks = true;
  } while (in_.skip_op(","));
  if (brackets) TRY_STATUS(in_.need_op(")"));
  if (!out.unpacks && in_.skip_op(".")) {
    TRY(out.attribute, in_.need_name());
  }
  return out;
}

}  // namespace

Fallible<Body> parse(std::string_view source) {
  TRY(auto tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace penstock::jinja
