// Runs of plain characters in JSON text: what a string holds between quotes and escapes.
//
// Concurrency: pure. Source: RFC 8259 section 7.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace penstock {

// Sixteen bytes at a time; the compiler makes the machine's vectors of them.
inline constexpr std::size_t kJsonRunStep = 16;

// Bit i is set when byte i of the kJsonRunStep bytes at `text` is a quote, a backslash or a control
// character.
inline std::uint32_t json_run_ends(const char* text) {
  using Bytes = std::uint8_t __attribute__((vector_size(kJsonRunStep)));
  using Bits = bool __attribute__((ext_vector_type(kJsonRunStep)));
  Bytes bytes;
  std::memcpy(&bytes, text, sizeof bytes);
  const auto ends = (bytes == '"') | (bytes == '\\') | (bytes < 0x20);
  return __builtin_bit_cast(std::uint16_t, __builtin_convertvector(ends, Bits));
}

// The offset of the first quote, backslash or control character from `at` on; the end without any.
inline std::size_t json_run_end(std::string_view text, std::size_t at) {
  for (; at + kJsonRunStep <= text.size(); at += kJsonRunStep) {
    const std::uint32_t ends = json_run_ends(text.data() + at);
    if (ends != 0) return at + static_cast<std::size_t>(std::countr_zero(ends));
  }
  while (at < text.size() && text[at] != '"' && text[at] != '\\' &&
         static_cast<unsigned char>(text[at]) >= 0x20) {
    ++at;
  }
  return at;
}

}  // namespace penstock
