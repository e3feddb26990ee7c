// UTF-8 in small steps: decode one character, measure an ill-formed sequence, repair a text.
//
// Invariants: an ill-formed sequence is measured as a maximal subpart: the longest prefix of some
// well-formed character, at least one byte. Repairing puts one U+FFFD in its place.
// Errors: none.
// Concurrency: pure functions.
// Source: Unicode 15 section 3.9, table 3-7.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::unicode {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Decoded {
  char32_t code_point = 0;
  std::uint32_t size = 1;
};

// Decodes the character at `p`, which must be well-formed.
inline Decoded decode(const char* p) {
  const auto at = [p](int i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(p[i]));
  };
  const std::uint32_t lead = at(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (at(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 | (at(3) & 0x3F), 4};
}

enum class Form : std::uint8_t {
  kWell,       // a whole character
  kIll,        // can't become one: replace `size` bytes
  kTruncated,  // the text ends in the middle of a character
};
struct Sequence {
  Form form = Form::kWell;
  std::size_t size = 1;
};

// Measures what `bytes`, which is not empty, begins with.
Sequence measure(std::string_view bytes);

// Returns how many bytes from the start are well-formed.
std::size_t well_formed_prefix(std::string_view text);

// Appends `text` with every maximal ill-formed subpart replaced by U+FFFD.
void append_repaired(std::string_view text, std::string& out);

}  // namespace penstock::unicode
