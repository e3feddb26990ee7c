#include <string>

#include "base/utf8.h"
#include "core/prompt/unicode_nfc.h"
#include "core/prompt/unicode_tables.h"
#include "core/prompt/unicode_utf8.h"

#include <doctest/doctest.h>

namespace penstock::unicode {
namespace {

TEST_CASE("utf8: ill-formed sequences are measured by maximal subparts") {
  struct Case {
    const char* bytes;
    Form form;
    std::size_t size;
  };
  const Case cases[] = {
      {"a", Form::kWell, 1},
      {"\xC3\xA9", Form::kWell, 2},
      {"\xE4\xB8\xAD", Form::kWell, 3},
      {"\xF0\x9F\x98\x80", Form::kWell, 4},
      {"\xF4\x8F\xBF\xBF", Form::kWell, 4},
      {"\x80", Form::kIll, 1},
      {"\xC0\x80", Form::kIll, 1},
      {"\xC1", Form::kIll, 1},
      {"\xE0\x80\x80", Form::kIll, 1},
      {"\xED\xA0\x80", Form::kIll, 1},
      {"\xF4\x90\x80\x80", Form::kIll, 1},
      {"\xF5", Form::kIll, 1},
      {"\xE4\xB8"
       "a",
       Form::kIll, 2},
      {"\xF0\x9F\x98"
       "a",
       Form::kIll, 3},
      {"\xC3", Form::kTruncated, 1},
      {"\xE4\xB8", Form::kTruncated, 2},
      {"\xF0\x9F\x98", Form::kTruncated, 3},
  };
  for (const Case& c : cases) {
    const Sequence sequence = measure(c.bytes);
    CHECK(sequence.form == c.form);
    CHECK(sequence.size == c.size);
  }
  CHECK(well_formed_prefix("0123456789\xC3\xA9"
                           "abc") == 15);
  CHECK(well_formed_prefix("01234567\xC3") == 8);
}

TEST_CASE("utf8: every code point survives") {
  std::string text;
  for (char32_t c = 0; c <= 0x10FFFF; c = c == 0xD7FF ? 0xE000 : c + 1) {
    text.clear();
    append_utf8(c, text);
    const Decoded decoded = decode(text.data());
    if (decoded.code_point != c || decoded.size != text.size() ||
        well_formed_prefix(text) != text.size()) {
      FAIL("code point ", static_cast<std::uint32_t>(c));
    }
  }
}

TEST_CASE("classes: a few characters, by the reference's Unicode version") {
  CHECK(classes().at('a') == kLetter);
  CHECK(classes().at(' ') == kSpace);
  CHECK(classes().at('\n') == (kSpace | kNewline));
  CHECK(classes().at('7') == (kNumber | kNumeric));
  CHECK(classes().at(U'½') == (kNumber | kNumeric));
  CHECK(classes().at(U'!') == kSign);
  CHECK(classes().at(U'€') == kSign);
  CHECK(classes().at(0x301) == kMark);
  CHECK(classes().at(0x4E2D) == kLetter);
  CHECK(deepseek_classes().at(0x4E2D) == kCjkRun);
  CHECK(deepseek_classes().at(0x9FA6) == kLetter);
  CHECK(deepseek_classes().at(0x3040) == (kCjkRun | kCjkOther));
  CHECK(classes().at(0x31350) == kLetter);  // Unicode 15
  CHECK(classes().at(0x10FFFF) == 0);
  CHECK(is_word('_'));
  CHECK(is_word(0x200D));
  CHECK(!is_word('-'));
  CHECK(is_white_space(0x3000));
  CHECK(!is_white_space(0x180E));
  CHECK(ranges_of("Zs").size() == 7);
  CHECK(ranges_of("Xx").empty());
  CHECK(ranges_of("").empty());
}

TEST_CASE("nfc: composes by the reference's tables") {
  const Nfc nfc;
  struct Case {
    const char* text;
    const char* expected;
  };
  const Case cases[] = {
      {"plain", "plain"},
      {"\u00e9", "\u00e9"},
      {"e\u0301", "\u00e9"},
      {"a\u0301\u0323", "\u1ea1\u0301"},
      {"\u1100\u1161\u11a8", "\uac01"},
      {"\u0958", "\u0915\u093c"},  // excluded from composition
      {"\u212b", "\u00c5"},
      {"\ufb01", "\ufb01"},  // compatibility characters stay
      // A mark newer than Unicode 9 is a base to the reference: nothing moves past it.
      {"e\u0323\u0899\u0301", "\u1eb9\u0899\u0301"},
      {"e\u0899\u0301", "e\u0899\u0301"},
      {"\u0eba\u0301\u0323", "\u0eba\u0323\u0301"},
  };
  for (const Case& c : cases) {
    std::string storage;
    CHECK(nfc.normalize(c.text, storage) == c.expected);
  }
}

}  // namespace
}  // namespace penstock::unicode
