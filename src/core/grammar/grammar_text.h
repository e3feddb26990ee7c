// What grammars that people write have in common: a reader of their text, and expressions that
// become rules. ebnf.h and lark.h are the two syntaxes.
//
// Errors: kInvalidArgument with the line; limits as GrammarLimits. Concurrency: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/grammar/common_rules.h"
#include "core/grammar/grammar.h"
#include "core/grammar/grammar_builder.h"
#include "core/grammar/limits.h"

namespace penstock::grammar {

struct Expression {
  enum class Kind : std::uint8_t {
    kText,          // these bytes
    kPattern,       // a regular expression, whole
    kRule,          // by name
    kToken,         // the special token `min`
    kJsonSchema,    // an instance of it, or of what lies in it at the pointer parts[0].text
    kWithout,       // any text in which no part's text occurs
    kSequence,      // of parts; none: the empty text
    kAlternatives,  // of parts
    kRepeat,        // of parts[0], min to max times
  };
  Kind kind = Kind::kSequence;
  std::string text;
  std::vector<Expression> parts;
  std::uint32_t min = 0;
  std::uint32_t max = kUnbounded;
  std::uint32_t line = 0;  // kRule: for messages
};

// Goes over the text of a grammar; knows lines.
class GrammarReader {
 public:
  GrammarReader(std::string_view text, std::string_view comment, const GrammarLimits& limits)
      : text_(text), comment_(comment), limits_(limits) {}

  // Skips blanks, line ends and comments.
  void skip();
  bool at_end() const { return at_ >= text_.size(); }
  bool next_is(std::string_view word) const { return text_.substr(at_).starts_with(word); }
  bool take(std::string_view word);
  // Letters, digits, "_" and "-"; empty when there is none.
  std::string_view name();
  std::string_view peek_name() const;
  // Between double quotes, with the escapes of JSON and \xHH.
  Result<std::string> quoted();
  // From here to the unescaped `end`, which is taken and left out.
  Result<std::string> up_to(char end);
  // A balanced {...}, strings inside respected.
  Result<std::string> braced();
  Result<std::uint32_t> number();
  std::unexpected<Error> error(std::string_view what) const;
  std::size_t position() const { return at_; }
  void back_to(std::size_t position) { at_ = position; }
  std::uint32_t line() const;
  const GrammarLimits& limits() const { return limits_; }

 private:
  std::string_view text_;
  std::string_view comment_;
  const GrammarLimits& limits_;
  std::size_t at_ = 0;
};

// Named expressions on their way to a Grammar.
class GrammarText {
 public:
  explicit GrammarText(const GrammarLimits& limits) : limits_(limits), builder_(limits) {}

  // False when there is one of that name.
  bool define(const std::string& name, Expression expression);
  Result<std::shared_ptr<const Grammar>> build(const std::string& root);

 private:
  Status emit(const Expression& expression, GrammarBuilder::State from, GrammarBuilder::State to);
  Status emit_repeat(const Expression& expression, GrammarBuilder::State from,
                     GrammarBuilder::State to);

  const GrammarLimits& limits_;
  GrammarBuilder builder_;
  CommonRules common_{builder_, Whitespace::kLimited};
  std::map<std::string, Expression> definitions_;
  std::map<std::string, GrammarBuilder::RuleId> rules_;
};

}  // namespace penstock::grammar
