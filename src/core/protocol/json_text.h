// The text of JSON strings. Internal to core/protocol.
// Concurrency: pure. Source: RFC 8259 section 7.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace penstock::protocol {

// `next` and `end` of a node whose value is not complete yet.
inline constexpr std::uint32_t kOpenNode = std::numeric_limits<std::uint32_t>::max();

// What a backslash and `c` stand for when that is one character; 0 when it isn't.
constexpr char simple_escape(char c) {
  constexpr auto kStandsFor = [] {
    std::array<char, 256> table{};
    constexpr std::string_view kFrom = "\"\\/bfnrt";
    constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
    for (std::size_t i = 0; i < kFrom.size(); ++i)
      table[static_cast<unsigned char>(kFrom[i])] = kTo[i];
    return table;
  }();
  return kStandsFor[static_cast<unsigned char>(c)];
}

// Decodes the inside of a string, without its quotes. Precondition: its escapes are well-formed.
std::string decode_json_text(std::string_view raw);

}  // namespace penstock::protocol
