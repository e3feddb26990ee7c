// Classes of characters in HTTP messages. Internal to io/http.
// Concurrency: pure. Source: RFC 9110 section 5.6.
#pragma once

#include <array>

namespace penstock::http {

inline constexpr auto kTokenChars = [] {
  std::array<bool, 256> table{};
  for (int c = '0'; c <= '9'; ++c)
    table[static_cast<std::size_t>(c)] = true;
  for (int c = 'a'; c <= 'z'; ++c)
    table[static_cast<std::size_t>(c)] = true;
  for (int c = 'A'; c <= 'Z'; ++c)
    table[static_cast<std::size_t>(c)] = true;
  for (const char c :
       {'!', '#', '$', '%', '&', '\'', '*', '+', '-', '.', '^', '_', '`', '|', '~'}) {
    table[static_cast<unsigned char>(c)] = true;
  }
  return table;
}();

inline bool is_token_char(char c) {
  return kTokenChars[static_cast<unsigned char>(c)];
}

// Field values: visible ASCII, spaces, tabs and bytes beyond ASCII; no other control character.
inline bool is_value_char(char c) {
  const auto u = static_cast<unsigned char>(c);
  return (u >= 0x20 && u != 0x7F) || c == '\t';
}

}  // namespace penstock::http
