#include "core/protocol/json_writer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

namespace penstock::protocol {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

unsigned char byte_at(std::string_view s, std::size_t i) {
  return i < s.size() ? static_cast<unsigned char>(s[i]) : 0;
}
bool is_continuation(unsigned char c) {
  return (c & 0xC0U) == 0x80U;
}

// Length of the well-formed character at `i`, or 0 with `*bad` set to the length of the ill-formed
// part to skip (Unicode 15, table 3-7 and "maximal subpart").
std::size_t character_length(std::string_view s, std::size_t i, std::size_t* bad) {
  const unsigned char lead = byte_at(s, i);
  *bad = 1;
  if (lead < 0x80) return 1;
  std::size_t length = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF)
    length = 2;
  else if (lead >= 0xE0 && lead <= 0xEF)
    length = 3;
  else if (lead >= 0xF0 && lead <= 0xF4)
    length = 4;
  else
    return 0;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;  // no surrogates
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  const unsigned char second = byte_at(s, i + 1);
  if (i + 1 >= s.size() || second < low || second > high) return 0;
  for (std::size_t k = 2; k < length; ++k) {
    *bad = k;
    if (i + k >= s.size() || !is_continuation(byte_at(s, i + k))) return 0;
  }
  return length;
}

// Length of the run of ASCII at `i`, eight bytes at a time.
std::size_t ascii_run(std::string_view s, std::size_t i) {
  const std::size_t begin = i;
  while (i + 8 <= s.size()) {
    std::uint64_t word = 0;
    std::memcpy(&word, s.data() + i, 8);
    if ((word & 0x8080808080808080ULL) != 0) break;
    i += 8;
  }
  while (i < s.size() && byte_at(s, i) < 0x80)
    ++i;
  return i - begin;
}

// What a byte needs inside a JSON string: 0 nothing, 'u' a \u escape, 1 a look at the UTF-8, or the
// letter of its short escape.
constexpr auto kEscapes = [] {
  std::array<char, 256> table{};
  for (std::size_t c = 0; c < 0x20; ++c)
    table[c] = 'u';
  for (std::size_t c = 0x80; c < 256; ++c)
    table[c] = 1;
  table[0x7F] = 'u';
  table['"'] = '"';
  table['\\'] = '\\';
  table['\n'] = 'n';
  table['\r'] = 'r';
  table['\t'] = 't';
  table['\b'] = 'b';
  table['\f'] = 'f';
  return table;
}();

template <typename Number>
void append_number(std::string& out, Number value) {
  std::array<char, 32> text{};
  out.append(text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr);
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view bytes) {
  std::size_t i = 0;
  while (i < bytes.size()) {
    i += ascii_run(bytes, i);
    while (i < bytes.size() && byte_at(bytes, i) >= 0x80) {
      std::size_t bad = 0;
      const auto length = character_length(bytes, i, &bad);
      if (length == 0) return i;
      i += length;
    }
  }
  return std::string_view::npos;
}

void append_json_string(std::string& out, std::string_view text) {
  out.push_back('"');
  std::size_t copied = 0;
  std::size_t i = 0;
  while (i < text.size()) {
    const char kind = kEscapes[byte_at(text, i)];
    if (kind == 0) {
      ++i;
      continue;
    }
    std::size_t bad = 1;
    if (kind == 1) {
      if (const auto length = character_length(text, i, &bad); length > 0) {
        i += length;
        continue;
      }
    }
    out.append(text.substr(copied, i - copied));
    if (kind == 1) {
      out.append(kReplacement);
    } else if (kind == 'u') {
      constexpr std::string_view kHex = "0123456789abcdef";
      out.append("\\u00").append(1, kHex[byte_at(text, i) >> 4U]).append(1, kHex[text[i] & 0xF]);
    } else {
      out.append(1, '\\').append(1, kind);
    }
    i += bad;
    copied = i;
  }
  out.append(text.substr(copied));
  out.push_back('"');
}

void append_compact_json(std::string& out, std::string_view json) {
  while (!json.empty()) {
    const auto plain = std::min(json.find_first_of("\" \t\r\n"), json.size());
    out.append(json.substr(0, plain));
    json.remove_prefix(plain);
    if (json.empty()) return;
    std::size_t length = 1;
    if (json.front() == '"') {
      while (length < json.size() && json[length] != '"')
        length += json[length] == '\\' ? 2 : 1;
      length = std::min(length + 1, json.size());
      out.append(json.substr(0, length));
    }
    json.remove_prefix(length);
  }
}

void append_valid_utf8(std::string& out, std::string_view text) {
  std::size_t copied = 0;
  std::size_t i = 0;
  while (i < text.size()) {
    i += ascii_run(text, i);
    if (i >= text.size()) break;
    std::size_t bad = 0;
    if (const auto length = character_length(text, i, &bad); length > 0) {
      i += length;
      continue;
    }
    out.append(text.substr(copied, i - copied)).append(kReplacement);
    i += bad;
    copied = i;
  }
  out.append(text.substr(copied));
}

void append_json_number(std::string& out, std::int64_t value) {
  append_number(out, value);
}
void append_json_number(std::string& out, std::uint64_t value) {
  append_number(out, value);
}

void append_json_logprob(std::string& out, float value) {
  if (!std::isfinite(value) || value < -9999.0F) {
    out.append("-9999.0");
    return;
  }
  const auto before = out.size();
  append_number(out, value);
  // A client with typed numbers wants a float: 0 is written 0.0, as -9999.0 is.
  if (out.find_first_of(".e", before) == std::string::npos) out.append(".0");
}

}  // namespace penstock::protocol
