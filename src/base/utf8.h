// A Unicode code point as UTF-8.
//
// Precondition: at most 0x10FFFF. A surrogate is written as any other number, which is not
// well-formed; callers who may have one decide what stands for it.
// Concurrency: pure. Source: RFC 3629, section 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace penstock {

inline constexpr std::size_t kUtf8BytesMax = 4;

// Writes at most kUtf8BytesMax bytes and returns where they end.
inline char* put_utf8(char32_t code_point, char* out) {
  const auto c = static_cast<std::uint32_t>(code_point);
  const auto put = [&out](std::uint32_t byte) { *out++ = static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
  return out;
}

inline void append_utf8(char32_t code_point, std::string& out) {
  char bytes[kUtf8BytesMax];
  out.append(bytes, put_utf8(code_point, bytes));
}

}  // namespace penstock
