#include "core/grammar/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/hex.h"

namespace penstock::grammar {

std::unexpected<Error> too_large(const GrammarLimits& limits) {
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("a pattern (with the format and length that go with it) needs more than {} "
                  "states; make its repetitions shorter",
                  limits.text_states_max));
}

namespace {

CodePointSet digits() {
  return {{'0', '9'}};
}
CodePointSet word_characters() {
  return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
}
CodePointSet white_space() {
  return {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}
CodePointSet line_ends() {
  return {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
}

// Thompson's construction by recursive descent. A fragment is one entry and one exit state; a
// counted repetition parses its operand's text as often as it is repeated.
class PatternParser {
 public:
  PatternParser(std::string_view pattern, const GrammarLimits& limits)
      : text_(pattern), limits_(limits) {}

  struct Fragment {
    std::uint32_t entry;
    std::uint32_t exit;
  };

  Result<Fragment> parse() {
    TRY(const Fragment all, alternatives(0));
    if (at_ < text_.size()) return error("a \")\" without its \"(\"");
    return all;
  }
  Nfa take() { return std::move(nfa_); }

 private:
  std::uint32_t state() {
    nfa_.states.emplace_back();
    return static_cast<std::uint32_t>(nfa_.states.size() - 1);
  }
  void empty(std::uint32_t from, std::uint32_t to, Passage passage = Passage::kFree) {
    nfa_.states[from].empties.push_back({passage, to});
  }
  Fragment of_set(CodePointSet set) {
    const std::uint32_t entry = state();
    const std::uint32_t exit = state();
    nfa_.states[entry].set = normalized(std::move(set));
    nfa_.states[entry].target = exit;
    return {entry, exit};
  }
  std::unexpected<Error> error(std::string_view what) const {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the pattern {:?} has {} at byte {}", text_, what, at_));
  }
  std::unexpected<Error> unsupported(std::string_view what) const {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the pattern {:?} uses {} at byte {}, which isn't supported; write it "
                            "without",
                            text_, what, at_));
  }
  bool more() const { return at_ < text_.size(); }
  bool next_is(std::string_view word) const { return text_.substr(at_).starts_with(word); }
  bool take(std::string_view word) {
    if (!next_is(word)) return false;
    at_ += word.size();
    return true;
  }

  Result<Fragment> alternatives(std::uint32_t depth) {
    if (depth > limits_.depth_max) return error("groups nested too deeply");
    TRY(const Fragment first, sequence(depth));
    if (!next_is("|")) return first;
    const std::uint32_t entry = state();
    const std::uint32_t exit = state();
    empty(entry, first.entry);
    empty(first.exit, exit);
    while (take("|")) {
      TRY(const Fragment other, sequence(depth));
      empty(entry, other.entry);
      empty(other.exit, exit);
    }
    return Fragment{entry, exit};
  }

  Result<Fragment> sequence(std::uint32_t depth) {
    const std::uint32_t entry = state();
    std::uint32_t exit = entry;
    while (more() && !next_is("|") && !next_is(")")) {
      TRY(const Fragment part, repeated(depth));
      empty(exit, part.entry);
      exit = part.exit;
    }
    return Fragment{entry, exit};
  }

  struct Bounds {
    std::uint32_t min = 1;
    std::uint32_t max = 1;  // kNoMax: no bound
  };
  static constexpr std::uint32_t kNoMax = 0xFFFFFFFF;

  Result<Bounds> bounds() {
    Bounds b;
    if (take("*")) {
      b = {0, kNoMax};
    } else if (take("+")) {
      b = {1, kNoMax};
    } else if (take("?")) {
      b = {0, 1};
    } else if (next_is("{")) {
      const std::size_t begin = at_++;
      TRY(b.min, count());
      b.max = b.min;
      if (take(",")) {
        b.max = kNoMax;
        if (!next_is("}")) {
          TRY(b.max, count());
        }
      }
      if (!take("}")) return error("a \"{\" that begins no count");
      if (b.min > b.max) {
        at_ = begin;
        return error("a repetition whose bounds are in the wrong order");
      }
    } else {
      return b;
    }
    take("?");  // lazy or greedy: the same texts
    if (next_is("*") || next_is("+") || next_is("?") || next_is("{"))
      return error("a repetition of a repetition");
    return b;
  }
  Result<std::uint32_t> count() {
    std::uint32_t n = 0;
    const std::size_t begin = at_;
    while (more() && text_[at_] >= '0' && text_[at_] <= '9') {
      n = n * 10 + static_cast<std::uint32_t>(text_[at_++] - '0');
      if (n > limits_.text_states_max) return too_large(limits_);
    }
    if (at_ == begin) return error("a count without a number");
    return n;
  }

  Result<Fragment> repeated(std::uint32_t depth) {
    const std::size_t begin = at_;
    TRY(Fragment part, atom(depth));
    TRY(const Bounds b, bounds());
    if (b.min == 1 && b.max == 1) return part;
    const std::size_t after = at_;
    const std::uint32_t entry = state();
    const std::uint32_t exit = state();
    std::uint32_t at = entry;
    bool fresh = true;  // `part` is parsed and not used yet
    const auto again = [&]() -> Status {
      if (nfa_.states.size() > limits_.nfa_states_max) return too_large(limits_);
      if (!fresh) {
        at_ = begin;
        TRY(part, atom(depth));
      }
      fresh = false;
      empty(at, part.entry);
      at = part.exit;
      return {};
    };
    for (std::uint32_t i = 0; i < b.min; ++i)
      TRY_STATUS(again());
    if (b.max == kNoMax) {
      const std::uint32_t loop = state();
      empty(at, loop);
      at = loop;
      TRY_STATUS(again());
      empty(at, loop);
      empty(loop, exit);
    } else {
      for (std::uint32_t i = b.min; i < b.max; ++i) {
        empty(at, exit);
        TRY_STATUS(again());
      }
      empty(at, exit);
    }
    at_ = after;
    return Fragment{entry, exit};
  }

  Result<Fragment> atom(std::uint32_t depth) {
    if (take("^")) return assertion(Passage::kAtBegin);
    if (take("$")) return assertion(Passage::kAtEnd);
    if (take(".")) return of_set(complement(normalized(line_ends())));
    if (next_is("[")) return char_class();
    if (next_is("(")) return group(depth);
    if (next_is("\\")) return escape_atom();
    if (next_is("*") || next_is("+") || next_is("?")) return error("a repetition of nothing");
    if (next_is("{") || next_is("}") || next_is("]")) return error("a bracket without its partner");
    const char32_t c = next_code_point();
    return of_set({{c, c}});
  }
  Fragment assertion(Passage passage) {
    const std::uint32_t entry = state();
    const std::uint32_t exit = state();
    empty(entry, exit, passage);
    return {entry, exit};
  }
  char32_t next_code_point() {
    std::string_view rest = text_.substr(at_);
    const char32_t c = take_code_point(rest);
    at_ = text_.size() - rest.size();
    return c;
  }

  Result<Fragment> group(std::uint32_t depth) {
    if (next_is("(?=") || next_is("(?!") || next_is("(?<=") || next_is("(?<!"))
      return unsupported("look-around");
    take("(");
    if (take("?<")) {
      while (more() && !next_is(">"))
        ++at_;
      if (!take(">")) return error("a group's name without end");
    } else if (take("?")) {
      if (!take(":")) return unsupported("a group option");
    }
    TRY(const Fragment inner, alternatives(depth + 1));
    if (!take(")")) return error("a \"(\" without its \")\"");
    return inner;
  }

  Result<Fragment> escape_atom() {
    if (next_is("\\b") || next_is("\\B")) return unsupported("a word border");
    if (next_is("\\k") ||
        (at_ + 1 < text_.size() && text_[at_ + 1] >= '1' && text_[at_ + 1] <= '9'))
      return unsupported("a back-reference");
    TRY(CodePointSet set, escape());
    return of_set(std::move(set));
  }

  // After the backslash: one character, or a class of them.
  Result<CodePointSet> escape() {
    take("\\");
    if (!more()) return error("a backslash at its end");
    const auto one = [](char32_t c) { return CodePointSet{{c, c}}; };
    const char c = text_[at_];
    if (static_cast<unsigned char>(c) >= 0x80) return error("an escape of a letter");
    ++at_;
    switch (c) {
      case 'd':
        return digits();
      case 'D':
        return complement(digits());
      case 'w':
        return word_characters();
      case 'W':
        return complement(word_characters());
      case 's':
        return normalized(white_space());
      case 'S':
        return complement(normalized(white_space()));
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        return one(0);
      case 'p':
      case 'P':
        --at_;
        return unsupported("a Unicode property");
      case 'x':
        return hex(2);
      case 'u':
        return unicode_escape();
      case 'c': {
        if (!more()) return error("a control escape without its letter");
        return one(static_cast<char32_t>(text_[at_++] & 0x1F));
      }
      default:
        break;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9')) {
      at_ -= 1;
      return error("an escape that doesn't exist");
    }
    return one(static_cast<char32_t>(c));
  }
  Result<char32_t> hex_number(std::size_t digit_count) {
    char32_t value = 0;
    for (std::size_t i = 0; i < digit_count; ++i) {
      if (!more()) return error("a hexadecimal escape that is too short");
      const int digit = hex_value(text_[at_]);
      if (digit < 0) return error("a hexadecimal escape that is too short");
      value = value * 16 + static_cast<char32_t>(digit);
      ++at_;
    }
    return value;
  }
  Result<CodePointSet> hex(std::size_t digit_count) {
    TRY(const char32_t c, hex_number(digit_count));
    return CodePointSet{{c, c}};
  }
  Result<CodePointSet> unicode_escape() {
    if (take("{")) {
      std::size_t digit_count = 0;
      while (at_ + digit_count < text_.size() && text_[at_ + digit_count] != '}')
        ++digit_count;
      if (digit_count == 0 || digit_count > 6) return error("a \\u{} that is no code point");
      TRY(const char32_t c, hex_number(digit_count));
      if (!take("}") || c > kCodePointMax) return error("a \\u{} that is no code point");
      return CodePointSet{{c, c}};
    }
    TRY(const char32_t high, hex_number(4));
    if (high < 0xD800 || high > 0xDFFF) return CodePointSet{{high, high}};
    if (high < 0xDC00 && take("\\u")) {
      TRY(const char32_t low, hex_number(4));
      if (low >= 0xDC00 && low <= 0xDFFF) {
        const char32_t c = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
        return CodePointSet{{c, c}};
      }
    }
    return error("half of a surrogate pair");
  }

  Result<Fragment> char_class() {
    take("[");
    const bool negated = take("^");
    CodePointSet set;
    const auto member = [&]() -> Result<CodePointSet> {
      if (take("\\b")) return CodePointSet{{'\b', '\b'}};
      if (next_is("\\")) return escape();
      const char32_t c = next_code_point();
      return CodePointSet{{c, c}};
    };
    while (more() && !next_is("]")) {
      TRY(CodePointSet first, member());
      const bool single = first.size() == 1 && first[0].first == first[0].last;
      if (next_is("-") && !next_is("-]") && single) {
        take("-");
        if (!more()) break;
        TRY(const CodePointSet last, member());
        if (last.size() != 1 || last[0].first != last[0].last)
          return error("a range that ends in a class");
        if (last[0].first < first[0].first) return error("a range in the wrong order");
        first[0].last = last[0].first;
      }
      set.insert(set.end(), first.begin(), first.end());
    }
    if (!take("]")) return error("a \"[\" without its \"]\"");
    set = normalized(std::move(set));
    return of_set(negated ? complement(set) : std::move(set));
  }

  std::string_view text_;
  const GrammarLimits& limits_;
  std::size_t at_ = 0;
  Nfa nfa_;
};

}  // namespace

Result<ParsedPattern> parse_pattern(std::string_view pattern, const GrammarLimits& limits) {
  PatternParser parser(pattern, limits);
  TRY(const auto all, parser.parse());
  return ParsedPattern{parser.take(), all.entry, all.exit};
}

}  // namespace penstock::grammar
