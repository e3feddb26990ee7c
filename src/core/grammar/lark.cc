#include "core/grammar/lark.h"

#include <fmt/format.h>

#include <utility>

#include "core/grammar/grammar_text.h"

namespace penstock::grammar {
namespace {

using Kind = Expression::Kind;

struct Import {
  std::string_view name;
  std::string_view pattern;
};
constexpr Import kImports[] = {
    {"DIGIT", "[0-9]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"NUMBER", "[0-9]+|[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"LETTER", "[A-Za-z]"},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z_0-9]*"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\.)*\""},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"WS_INLINE", "[ \\t]+"},
    {"NEWLINE", "(\\r?\\n)+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
};

Expression pattern(std::string_view text) {
  return {.kind = Kind::kPattern, .text = std::string(text), .parts = {}};
}

std::string escaped_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\^$.*+?()[]{}|/").contains(c)) out += '\\';
    out += c;
  }
  return out;
}

class LarkParser {
 public:
  LarkParser(std::string_view text, const GrammarLimits& limits)
      : in_(text, "//", limits), out_(limits) {}

  Result<std::shared_ptr<const Grammar>> run() {
    for (in_.skip(); !in_.at_end(); in_.skip()) {
      if (in_.take("%")) {
        TRY_STATUS(directive());
        continue;
      }
      if (!in_.take("?")) in_.take("!");
      const std::string name(in_.name());
      if (in_.take(".")) {
        TRY([[maybe_unused]] const std::uint32_t priority, in_.number());
      }
      in_.skip();
      if (name.empty() || !in_.take(":")) return in_.error("no \"name:\" where a rule begins");
      in_terminal_ = name[0] == '_' ? name.size() > 1 && is_upper(name[1]) : is_upper(name[0]);
      TRY(Expression body, alternatives(0));
      if (!out_.define(name, std::move(body)))
        return in_.error(fmt::format("a second rule \"{}\"", name));
    }
    Expression ignored{.kind = Kind::kAlternatives, .text = {}, .parts = {}};
    ignored.parts.emplace_back();
    for (Expression& one : ignored_)
      ignored.parts.push_back(std::move(one));
    out_.define(std::string(kIgnored), std::move(ignored));
    return out_.build("start");
  }

 private:
  static constexpr std::string_view kIgnored = "%ignore";
  static bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

  Status directive() {
    const std::string_view word = in_.name();
    in_.skip();
    if (word == "ignore") {
      in_terminal_ = true;
      TRY(Expression what, alternatives(0));
      ignored_.push_back(std::move(what));
      return {};
    }
    if (word == "import" && in_.take("common.")) {
      const std::string name(in_.name());
      std::string alias = name;
      in_.skip();
      if (in_.take("->")) {
        in_.skip();
        alias = in_.name();
      }
      for (const Import& import : kImports) {
        if (import.name != name) continue;
        out_.define(alias, pattern(import.pattern));
        return {};
      }
      return in_.error(fmt::format("an import of common.{}, which isn't known", name));
    }
    return in_.error(fmt::format("a %{} that isn't supported", word));
  }

  Result<Expression> alternatives(std::uint32_t depth) {
    if (depth > in_.limits().depth_max) return in_.error("groups nested too deeply");
    Expression all{.kind = Kind::kAlternatives, .text = {}, .parts = {}};
    do {
      TRY(Expression one, sequence(depth));
      in_.skip();
      if (in_.take("->")) {
        in_.skip();
        in_.name();
        in_.skip();
      }
      all.parts.push_back(std::move(one));
    } while (in_.take("|"));
    return all;
  }

  bool rule_begins() {
    const std::size_t here = in_.position();
    if (!in_.take("?")) in_.take("!");
    bool begins = !in_.name().empty();
    if (begins && in_.take(".")) begins = in_.number().has_value();
    in_.skip();
    begins = begins && in_.next_is(":");
    in_.back_to(here);
    return begins;
  }

  Result<Expression> sequence(std::uint32_t depth) {
    Expression all;
    for (;;) {
      in_.skip();
      const bool ends = in_.at_end() || in_.next_is("|") || in_.next_is(")") || in_.next_is("]") ||
                        in_.next_is("->") || (in_.next_is("%") && !in_.next_is("%json"));
      if (ends || rule_begins()) return all;
      TRY(Expression one, element(depth));
      TRY(one, repeated(std::move(one)));
      all.parts.push_back(std::move(one));
    }
  }

  static Expression repeat(Expression one, std::uint32_t min, std::uint32_t max) {
    Expression out{.kind = Kind::kRepeat, .text = {}, .parts = {}, .min = min, .max = max};
    out.parts.push_back(std::move(one));
    return out;
  }

  Result<Expression> repeated(Expression one) {
    if (in_.take("*")) return repeat(std::move(one), 0, kUnbounded);
    if (in_.take("+")) return repeat(std::move(one), 1, kUnbounded);
    if (in_.take("?")) return repeat(std::move(one), 0, 1);
    const std::size_t here = in_.position();
    in_.skip();
    if (!in_.take("~")) {
      in_.back_to(here);
      return one;
    }
    in_.skip();
    TRY(const std::uint32_t min, in_.number());
    std::uint32_t max = min;
    if (in_.take("..")) {
      TRY(max, in_.number());
    }
    if (min > max) return in_.error("a repetition whose bounds are in the wrong order");
    return repeat(std::move(one), min, max);
  }

  // A terminal of a rule: what is ignored may follow.
  Expression terminal(Expression one) const {
    if (in_terminal_) return one;
    Expression out;
    out.parts.push_back(std::move(one));
    out.parts.push_back(
        {.kind = Kind::kRule, .text = std::string(kIgnored), .parts = {}, .line = in_.line()});
    return out;
  }

  Result<Expression> text_element() {
    TRY(const std::string text, in_.quoted());
    if (!is_valid_utf8(text)) return in_.error("text that isn't UTF-8");
    if (in_.take("..")) {
      if (!in_.next_is("\"")) return in_.error("a range without its end");
      TRY(const std::string last, in_.quoted());
      return pattern("[" + escaped_class(text) + "-" + escaped_class(last) + "]");
    }
    if (!in_.take("i")) return Expression{.kind = Kind::kText, .text = text, .parts = {}};
    std::string both;
    for (const char c : text) {
      const char lower = static_cast<char>(c | 0x20);
      const bool letter = lower >= 'a' && lower <= 'z';
      both += letter ? fmt::format("[{}{}]", lower, static_cast<char>(lower - 0x20))
                     : escaped_pattern(std::string_view(&c, 1));
    }
    return pattern(both);
  }
  static std::string escaped_class(std::string_view text) {
    return text == "\\" || text == "]" || text == "^" || text == "-" ? "\\" + std::string(text)
                                                                     : std::string(text);
  }

  Result<Expression> element(std::uint32_t depth) {
    if (in_.next_is("\"")) {
      TRY(Expression text, text_element());
      return terminal(std::move(text));
    }
    if (in_.take("/")) {
      TRY(const std::string text, in_.up_to('/'));
      if (!in_.peek_name().empty()) return in_.error("flags of a regular expression");
      return terminal(pattern(text));
    }
    if (in_.take("%json")) {
      in_.skip();
      TRY(std::string schema, in_.braced());
      return terminal({.kind = Kind::kJsonSchema, .text = std::move(schema), .parts = {}});
    }
    if (in_.take("<[")) {
      TRY(const std::uint32_t id, in_.number());
      if (!in_.take("]>")) return in_.error("a token that isn't <[id]>");
      return Expression{.kind = Kind::kToken, .text = {}, .parts = {}, .min = id};
    }
    if (in_.take("(")) {
      TRY(Expression inner, alternatives(depth + 1));
      if (!in_.take(")")) return in_.error("a \"(\" without its \")\"");
      return inner;
    }
    if (in_.take("[")) {
      TRY(Expression inner, alternatives(depth + 1));
      if (!in_.take("]")) return in_.error("a \"[\" without its \"]\"");
      return repeat(std::move(inner), 0, 1);
    }
    Expression out{.kind = Kind::kRule, .text = {}, .parts = {}, .line = in_.line()};
    out.text = in_.name();
    if (out.text.empty()) return in_.error("something that is no part of a rule");
    const std::size_t first = out.text[0] == '_' && out.text.size() > 1 ? 1 : 0;
    return is_upper(out.text[first]) ? terminal(std::move(out)) : out;
  }

  GrammarReader in_;
  GrammarText out_;
  std::vector<Expression> ignored_;
  bool in_terminal_ = false;
};

}  // namespace

Result<std::shared_ptr<const Grammar>> lark_grammar(std::string_view text,
                                                    const GrammarLimits& limits) {
  if (text.size() > limits.source_bytes_max)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the grammar has more than {} bytes", limits.source_bytes_max));
  return LarkParser(text, limits).run();
}

}  // namespace penstock::grammar
