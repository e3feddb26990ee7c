#include "core/prompt/unicode_utf8.h"

#include <cstring>

namespace penstock::unicode {
namespace {

unsigned char byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}

// What table 3-7 allows: the length of the character and the range of its second byte.
struct Lead {
  std::uint8_t size;
  unsigned char second_min;
  unsigned char second_max;
};

Lead lead_of(unsigned char lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Sequence measure(std::string_view bytes) {
  const Lead lead = lead_of(byte_at(bytes, 0));
  if (lead.size == 1) return {Form::kWell, 1};
  if (lead.size == 0) return {Form::kIll, 1};
  for (std::size_t i = 1; i < lead.size; ++i) {
    if (i == bytes.size()) return {Form::kTruncated, i};
    const unsigned char byte = byte_at(bytes, i);
    const unsigned char min = i == 1 ? lead.second_min : 0x80;
    const unsigned char max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {Form::kIll, i};
  }
  return {Form::kWell, lead.size};
}

std::size_t well_formed_prefix(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  std::size_t i = 0;
  while (i < text.size()) {
    while (i + 8 <= text.size()) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + i, 8);
      if ((word & kHighBits) != 0) break;
      i += 8;
    }
    if (i == text.size()) break;
    const Sequence sequence = measure(text.substr(i));
    if (sequence.form != Form::kWell) return i;
    i += sequence.size;
  }
  return i;
}

void append_repaired(std::string_view text, std::string& out) {
  while (true) {
    const std::size_t good = well_formed_prefix(text);
    out.append(text.substr(0, good));
    text.remove_prefix(good);
    if (text.empty()) return;
    out.append(kReplacement);
    text.remove_prefix(measure(text).size);
  }
}

}  // namespace penstock::unicode
