#include "core/grammar/ebnf.h"

#include <fmt/format.h>

#include <utility>

#include "core/grammar/grammar_text.h"

namespace penstock::grammar {
namespace {

using Kind = Expression::Kind;

class EbnfParser {
 public:
  EbnfParser(std::string_view text, const GrammarLimits& limits)
      : in_(text, "#", limits), out_(limits) {}

  Result<std::shared_ptr<const Grammar>> run() {
    for (in_.skip(); !in_.at_end(); in_.skip()) {
      const std::string name(in_.name());
      in_.skip();
      if (name.empty() || !in_.take("::=")) return in_.error("no \"name ::=\" where a rule begins");
      TRY(Expression body, alternatives(0));
      if (!out_.define(name, std::move(body)))
        return in_.error(fmt::format("a second rule \"{}\"", name));
    }
    return out_.build("root");
  }

 private:
  Result<Expression> alternatives(std::uint32_t depth) {
    if (depth > in_.limits().depth_max) return in_.error("groups nested too deeply");
    Expression all{.kind = Kind::kAlternatives, .text = {}, .parts = {}};
    do {
      TRY(Expression one, sequence(depth));
      all.parts.push_back(std::move(one));
      in_.skip();
    } while (in_.take("|"));
    return all;
  }

  // At the name of the next rule.
  bool rule_begins() {
    const std::size_t here = in_.position();
    const bool named = !in_.name().empty();
    in_.skip();
    const bool begins = named && in_.next_is("::=");
    in_.back_to(here);
    return begins;
  }

  Result<Expression> sequence(std::uint32_t depth) {
    Expression all;
    for (;;) {
      in_.skip();
      if (in_.at_end() || in_.next_is("|") || in_.next_is(")") || rule_begins()) return all;
      TRY(Expression one, element(depth));
      TRY(one, repeated(std::move(one)));
      all.parts.push_back(std::move(one));
    }
  }

  Result<Expression> repeated(Expression one) {
    std::uint32_t min = 0;
    std::uint32_t max = kUnbounded;
    if (in_.take("*")) {
    } else if (in_.take("+")) {
      min = 1;
    } else if (in_.take("?")) {
      max = 1;
    } else if (in_.take("{")) {
      TRY(min, in_.number());
      max = min;
      if (in_.take(",")) {
        max = kUnbounded;
        if (!in_.next_is("}")) {
          TRY(max, in_.number());
        }
      }
      if (!in_.take("}") || min > max) return in_.error("a repetition that isn't {min,max}");
    } else {
      return one;
    }
    Expression out{.kind = Kind::kRepeat, .text = {}, .parts = {}, .min = min, .max = max};
    out.parts.push_back(std::move(one));
    return out;
  }

  // A quoted text, as a part.
  Status word(Expression& out) {
    TRY(std::string word, in_.quoted());
    if (!is_valid_utf8(word)) return in_.error("text that isn't UTF-8");
    if (word.empty()) return in_.error("an empty text");
    out.parts.push_back({.kind = Kind::kText, .text = std::move(word), .parts = {}});
    return {};
  }

  Result<Expression> element(std::uint32_t depth) {
    Expression out;
    if (in_.next_is("\"")) {
      out.kind = Kind::kText;
      TRY(out.text, in_.quoted());
      if (!is_valid_utf8(out.text)) return in_.error("text that isn't UTF-8");
    } else if (in_.take("[")) {
      out.kind = Kind::kPattern;
      TRY(const std::string members, in_.up_to(']'));
      out.text = "[" + members + "]";
    } else if (in_.take("/")) {
      out.kind = Kind::kPattern;
      TRY(out.text, in_.up_to('/'));
    } else if (in_.take(".")) {
      out.kind = Kind::kPattern;
      out.text = ".";
    } else if (in_.take("<[")) {
      out.kind = Kind::kToken;
      TRY(out.min, in_.number());
      if (!in_.take("]>")) return in_.error("a token that isn't <[id]>");
    } else if (in_.take("%json")) {
      out.kind = Kind::kJsonSchema;
      in_.skip();
      if (in_.next_is("\"")) TRY_STATUS(word(out));
      in_.skip();
      TRY(out.text, in_.braced());
    } else if (in_.take("%without")) {
      out.kind = Kind::kWithout;
      in_.skip();
      const bool open = in_.take("(");
      for (in_.skip(); open && in_.next_is("\""); in_.skip())
        TRY_STATUS(word(out));
      if (out.parts.empty() || !in_.take(")"))
        return in_.error("a %without that isn't (\"text\" ...)");
    } else if (in_.take("(")) {
      TRY(out, alternatives(depth + 1));
      if (!in_.take(")")) return in_.error("a \"(\" without its \")\"");
    } else {
      out.kind = Kind::kRule;
      out.line = in_.line();
      out.text = in_.name();
      if (out.text.empty()) return in_.error("something that is no part of a rule");
    }
    return out;
  }

  GrammarReader in_;
  GrammarText out_;
};

}  // namespace

Result<std::shared_ptr<const Grammar>> ebnf_grammar(std::string_view text,
                                                    const GrammarLimits& limits) {
  if (text.size() > limits.source_bytes_max)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the grammar has more than {} bytes", limits.source_bytes_max));
  return EbnfParser(text, limits).run();
}

}  // namespace penstock::grammar
