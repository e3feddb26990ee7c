// Character classes as the reference tokenizers see them: categories, white space, letters,
// numbers.
//
// The tables are generated from the reference (unicode_data.inc), because its regular expressions
// follow another Unicode version than Debian's libraries do. For scanning there is a two-stage
// table of one byte of class bits per code point, made once from the runs.
//
// Invariants: the bits of a code point never change; code points above U+10FFFF do not occur.
// Concurrency: immutable after the first use; initialisation is thread-safe.
// Source: tools/tokenizer_reference/unicode_data.mjs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace penstock::unicode {

struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;
  bool operator==(const CodePointRange&) const = default;
};

using ClassBits = std::uint8_t;
inline constexpr ClassBits kLetter = 1;      // \p{L}
inline constexpr ClassBits kMark = 2;        // \p{M}
inline constexpr ClassBits kNumber = 4;      // \p{N}
inline constexpr ClassBits kSign = 8;        // \p{P} or \p{S}
inline constexpr ClassBits kSpace = 16;      // \s
inline constexpr ClassBits kNewline = 32;    // \r or \n, beside kSpace
inline constexpr ClassBits kCjkRun = 64;     // DeepSeek's own ranges; only in deepseek_classes()
inline constexpr ClassBits kCjkOther = 128;  // beside kCjkRun: neither a letter nor a mark
inline constexpr ClassBits kNumeric =
    128;  // what the Digits pre-tokenizer takes for a digit; only in classes()

class ClassTable {
 public:
  static constexpr std::uint32_t kBlockBits = 7;

  ClassBits at(char32_t c) const {
    return values_[static_cast<std::size_t>(blocks_[c >> kBlockBits]) + (c & 127)];
  }
  ClassBits ascii(unsigned char c) const { return values_[c]; }

  // Packs one byte per code point.
  explicit ClassTable(std::span<const ClassBits> by_code_point);

 private:
  std::vector<std::uint32_t> blocks_;  // start of the block in values_
  std::vector<ClassBits> values_;      // block 0 holds ASCII
};

// The classes as they are.
const ClassTable& classes();
// The same, with kCjkRun for the characters of DeepSeek's [一-龥぀-ゟ゠-ヿ] instead of their
// own class.
const ClassTable& deepseek_classes();

// Whether \w of the reference's single_word check matches.
bool is_word(char32_t c);
bool is_white_space(char32_t c);

// Ranges, ascending and disjoint, of a general category ("Lu"), a group of them ("L") or the script
// "Han"; empty for any other name.
std::vector<CodePointRange> ranges_of(std::string_view name);
std::span<const CodePointRange> white_space_ranges();
std::vector<CodePointRange> word_ranges();

}  // namespace penstock::unicode
