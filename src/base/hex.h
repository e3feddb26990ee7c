// Hexadecimal digits. Concurrency: pure.
#pragma once

namespace penstock {

// The value of a hexadecimal digit in either case, or -1.
constexpr int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace penstock
