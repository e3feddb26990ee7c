// Sets of Unicode scalar values, and the byte sequences that spell them in UTF-8.
//
// Invariants: a CodePointSet is sorted, disjoint, not adjacent, and holds no surrogate; a byte
// range sequence matches well-formed UTF-8 only. Concurrency: values. Source: RFC 3629, table of
// section 4.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::grammar {

inline constexpr char32_t kCodePointMax = 0x10FFFF;

struct CodePointRange {
  char32_t first;
  char32_t last;  // inclusive
  bool operator==(const CodePointRange&) const = default;
};
using CodePointSet = std::vector<CodePointRange>;

// Sorts, joins, and takes surrogates out.
CodePointSet normalized(CodePointSet set);
CodePointSet complement(const CodePointSet& set);
CodePointSet all_code_points();

struct ByteRange {
  std::uint8_t first;
  std::uint8_t last;
};
using ByteSequence = std::vector<ByteRange>;  // 1 to 4
// Sequences that together spell exactly the code points of the set.
std::vector<ByteSequence> utf8_sequences(const CodePointSet& set);

// Takes one code point off the front of valid UTF-8. Precondition: not empty; valid.
char32_t take_code_point(std::string_view& text);
bool is_valid_utf8(std::string_view text);
// The text between the quotes of a JSON string, in the one spelling that fixed strings have here:
// short escapes where there are any, \u00xx for other controls, all else as it is.
std::string json_escaped(std::string_view text);

}  // namespace penstock::grammar
