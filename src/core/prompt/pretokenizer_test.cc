#include "core/prompt/pretokenizer.h"

#include <string>

#include "base/rng.h"
#include "base/utf8.h"
#include "core/prompt/pretokenizer_regex.h"
#include "core/prompt/pretokenizer_scanner.h"
#include "core/prompt/unicode_tables.h"
#include "core/prompt/unicode_utf8.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

std::vector<std::string> pieces_of(const PreTokenizer& pre_tokenizer, std::string_view text) {
  std::vector<std::string> pieces;
  auto collect = [&](std::string_view piece) { pieces.emplace_back(piece); };
  const auto scratch = pre_tokenizer.make_scratch();
  REQUIRE(pre_tokenizer.split(text, scratch.get(), PieceSink(collect)));
  return pieces;
}

std::string joined(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces)
    text += (text.empty() ? "" : "|") + piece;
  return text;
}

// Text of characters that mean something to the patterns, mixed with any others.
std::string random_text(Rng& rng) {
  static constexpr std::string_view kParts[] = {
      " ",          " ",          "  ",     "\n",      "\r",     "\r\n",   "\t", "\u00a0",
      "\u0085",     "\u2028",     "\u180e", "\u3000",  "\u200b", "'",      "'",  "s",
      "S",          "\u017f",     "t",      "RE",      "ve",     "ll",     "lL", "d",
      "M",          "a",          "\u00e9", "e\u0301", "\u20dd", "1",      "12", "٣",
      "½",          "²",          "一",     "龥",      "龦",     "\u3040", "ー", "\u3099",
      "!",          "\"",         "$",      "-",       "\\",     "]",      "€",  "。",
      "\U0001F600", "\U0001D400", "\ue000", "\u0378",  "\u0007"};
  std::string text;
  for (std::uint64_t i = rng.below(24); i > 0; --i) {
    if (rng.below(5) != 0) {
      text += kParts[rng.below(std::size(kParts))];
      continue;
    }
    constexpr std::uint64_t kLimits[] = {0x80, 0x800, 0x3100, 0xD800, 0x20000, 0x110000};
    const auto c = static_cast<char32_t>(rng.below(kLimits[rng.below(std::size(kLimits))]));
    if (c < 0xD800 || c > 0xDFFF) append_utf8(c, text);
  }
  return text;
}

TEST_CASE("pre-tokenizer: scanners cut as PCRE2 does with the same pattern") {
  Rng rng(7);
  constexpr ScannerKind kKinds[] = {ScannerKind::kNumberEach,    ScannerKind::kNumberTriples,
                                    ScannerKind::kDeepseekCjk,   ScannerKind::kDeepseekText,
                                    ScannerKind::kLlama3,        ScannerKind::kQwen,
                                    ScannerKind::kDeepseekCoder, ScannerKind::kGpt2};
  for (const ScannerKind kind : kKinds) {
    const std::string pattern(pattern_of(kind));
    CAPTURE(pattern);
    REQUIRE(known_scanner(pattern) == kind);
    PreTokenizer fast;
    PreTokenizer slow(PreTokenizer::Engine::kRegexOnly);
    REQUIRE(fast.add_split({pattern}));
    REQUIRE(slow.add_split({pattern}));
    CHECK(fast.make_scratch() == nullptr);
    for (int round = 0; round < 4000; ++round) {
      const std::string text = random_text(rng);
      REQUIRE(joined(pieces_of(fast, text)) == joined(pieces_of(slow, text)));
    }
  }
}

TEST_CASE("pre-tokenizer: splits that are made at once cut as one after the other") {
  Rng rng(8);
  const std::vector<ScannerKind> families[] = {
      {ScannerKind::kNumberTriples, ScannerKind::kDeepseekCjk, ScannerKind::kDeepseekText},
      {ScannerKind::kNumberEach, ScannerKind::kDeepseekCoder}};
  for (const auto& family : families) {
    PreTokenizer fast;
    PreTokenizer slow(PreTokenizer::Engine::kRegexOnly);
    for (PreTokenizer* pre_tokenizer : {&fast, &slow}) {
      for (const ScannerKind kind : family)
        REQUIRE(pre_tokenizer->add_split({std::string(pattern_of(kind))}));
      pre_tokenizer->finish();
    }
    for (int round = 0; round < 20000; ++round) {
      const std::string text = random_text(rng);
      REQUIRE(joined(pieces_of(fast, text)) == joined(pieces_of(slow, text)));
    }
  }
}

TEST_CASE("pre-tokenizer: every code point is of the same class for scanners and PCRE2") {
  std::string text;
  for (char32_t c = 0; c <= 0x10FFFF; c = c == 0xD7FF ? 0xE000 : c + 1) {
    append_utf8(c, text);
  }
  for (const ScannerKind kind : {ScannerKind::kLlama3, ScannerKind::kDeepseekText}) {
    PreTokenizer fast;
    PreTokenizer slow(PreTokenizer::Engine::kRegexOnly);
    REQUIRE(fast.add_split({std::string(pattern_of(kind))}));
    REQUIRE(slow.add_split({std::string(pattern_of(kind))}));
    CHECK((pieces_of(fast, text) == pieces_of(slow, text)));
  }
}

TEST_CASE("pre-tokenizer: behaviours of a split") {
  struct Case {
    SplitBehavior behavior;
    bool invert;
    const char* expected;
  };
  const Case cases[] = {
      {SplitBehavior::kIsolated, false, "-|-|a|-|bc|-"},
      {SplitBehavior::kRemoved, false, "a|bc"},
      {SplitBehavior::kRemoved, true, "-|-|-|-"},
      {SplitBehavior::kMergedWithPrevious, false, "-|-|a-|bc-"},
      {SplitBehavior::kMergedWithPrevious, true, "-|-a|-bc|-"},
      {SplitBehavior::kMergedWithNext, false, "-|-a|-bc|-"},
      {SplitBehavior::kMergedWithNext, true, "-|-|a-|bc-"},
      {SplitBehavior::kContiguous, false, "--|a|-|bc|-"},
  };
  for (const Case& c : cases) {
    for (const bool is_regex : {false, true}) {
      CAPTURE(c.expected);
      PreTokenizer pre_tokenizer;
      REQUIRE(pre_tokenizer.add_split({"-", is_regex, c.behavior, c.invert}));
      CHECK(joined(pieces_of(pre_tokenizer, "--a-bc-")) == c.expected);
      CHECK(pieces_of(pre_tokenizer, "").empty());
    }
  }
}

TEST_CASE("pre-tokenizer: stages see the pieces of the stage before and no further") {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.add_digits(true);
  REQUIRE(pre_tokenizer.add_byte_level(true, true));
  // "a  " is a piece of its own, so the look-ahead takes both spaces; each piece gets a space.
  CHECK(joined(pieces_of(pre_tokenizer, "a  12b")) == " a|  | 1| 2| b");
  PreTokenizer runs;
  runs.add_digits(false);
  CHECK(joined(pieces_of(runs, "a12½b٣")) == "a|12½|b|٣");
}

TEST_CASE("regex: empty matches cut between characters, never beside a match") {
  PreTokenizer before_b;
  REQUIRE(before_b.add_split({"(?=b)"}));
  CHECK(joined(pieces_of(before_b, "abbc")) == "a|b|bc");
  PreTokenizer any;
  REQUIRE(any.add_split({"x*"}));
  CHECK(joined(pieces_of(any, "axxé")) == "a|xx|é");
}

TEST_CASE("regex: classes mean what they mean in the reference") {
  struct Case {
    const char* pattern;
    const char* text;
    const char* expected;
  };
  const Case cases[] = {
      {R"(\s)", "a\u180eb\u0085c", "a\u180eb|\u0085|c"},  // U+180E is a space to PCRE2 only
      {R"([^\S\n]+)", "a \t\nb", "a| \t|\nb"},
      {R"(\v)",
       "a\nb\x0b"
       "c",
       "a\nb|\x0b|c"},  // a vertical tab, not any vertical space
      {R"(\d+)", "a1٣b", "a|1٣|b"},
      {R"([\D]+)", "a1b", "a|1|b"},
      {R"(\P{L}+)", "a12b", "a|12|b"},
      {R"(\p{^L}+)", "a12b", "a|12|b"},
      {R"([^\P{L}a]+)", "abc1", "a|bc|1"},
      {R"(\p{Han}+)", "ab中文c", "ab|中文|c"},
      {R"(\p{Lu}\p{Ll}*)", "OneTwo", "One|Two"},
      {R"(.)", "a\nb", "a|\n|b"},
      {R"((?i:K))", "a\u212ab", "a|\u212a|b"},
      {R"(a{2})", "aaaaa", "aa|aa|a"},
      {R"(\$\.)", "a$.b", "a|$.|b"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.pattern);
    PreTokenizer pre_tokenizer;
    const Status status = pre_tokenizer.add_split({c.pattern});
    REQUIRE(status);
    CHECK(joined(pieces_of(pre_tokenizer, c.text)) == c.expected);
  }
  const char* const refused[] = {"^a",     "a$",          R"(\bx)", R"(\hx)", R"(\Kx)",
                                 "[a&&b]", "[[:alpha:]]", "a{,2}",  "a{2}+",  R"((a)\1)",
                                 "(?m).",  "(*FAIL)",     "[]",     "[a",     R"(\p{Cn})",
                                 R"(\pL)", "a\\"};
  for (const char* const pattern : refused) {
    CAPTURE(pattern);
    PreTokenizer pre_tokenizer;
    const Status status = pre_tokenizer.add_split({pattern});
    REQUIRE(!status);
    CHECK(status.error().code == ErrorCode::kUnsupported);
  }
}

}  // namespace
}  // namespace penstock
