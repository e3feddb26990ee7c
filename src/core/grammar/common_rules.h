// Rules that JSON grammars share: strings, numbers, white space, any value.
//
// White space. JSON allows any amount anywhere; a model that may write it may never stop. Allowed
// are: after "{", "[", "," and before "}", "]": nothing, one space, or one line feed with up to
// kIndentMax spaces; after ":" nothing or one space; none elsewhere. Numbers have at most
// kDigitsMax digits before and after the point and two in the exponent: any double but the largest
// can be said.
//
// Invariants: all these spell JSON as RFC 8259 has it, in valid UTF-8; escapes of surrogates come
// in pairs. Concurrency: values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/grammar/grammar_builder.h"

namespace penstock::grammar {

enum class Whitespace : std::uint8_t { kCompact, kLimited };

class CommonRules {
 public:
  using State = GrammarBuilder::State;
  static constexpr std::uint32_t kIndentMax = 24;
  static constexpr int kDigitsMax = 20;

  CommonRules(GrammarBuilder& builder, Whitespace whitespace)
      : builder_(builder), whitespace_(whitespace) {}

  void string(State from, State to);  // with its quotes, any spelling
  void string(State from, std::uint32_t min, std::uint32_t max, State to);  // in code points
  void number(State from, State to);
  void integer(State from, State to);
  void value(State from, State to);   // anything
  void object(State from, State to);  // any object
  void array(State from, State to);

  void gap(State from, State to);    // after "{", "[" and ","
  void colon(State from, State to);  // ":" and what may follow it
  // A gap and then the bracket; `op` stands on the first byte of what comes.
  void close(State from, char bracket, State to, EdgeOp op = EdgeOp::kNone);

  GrammarBuilder& builder() { return builder_; }

 private:
  using RuleId = GrammarBuilder::RuleId;
  RuleId string_rule(std::uint32_t min, std::uint32_t max, bool counts);
  RuleId number_rule(bool whole);
  RuleId value_rule();
  void indent(State from, State to, EdgeOp op);

  GrammarBuilder& builder_;
  Whitespace whitespace_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, RuleId> counted_strings_;
  std::optional<RuleId> string_;
  std::optional<RuleId> number_;
  std::optional<RuleId> integer_;
  std::optional<RuleId> value_;
};

}  // namespace penstock::grammar
