// The text of JSON strings. Internal to core/protocol.
// Concurrency: pure. Source: RFC 8259 section 7.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace penstock::protocol {

// `next` and `end` of a node whose value is not complete yet.
inline constexpr std::uint32_t kOpenNode = std::numeric_limits<std::uint32_t>::max();

// Decodes the inside of a string, without its quotes. Precondition: its escapes are well-formed.
std::string decode_json_text(std::string_view raw);

}  // namespace penstock::protocol
