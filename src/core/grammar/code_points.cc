#include "core/grammar/code_points.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"

namespace penstock::grammar {
namespace {

constexpr char32_t kBeforeSurrogates = 0xD7FF;
constexpr char32_t kAfterSurrogates = 0xE000;

// Splits [first, last], all of one encoded length, so that each part is a product of byte ranges.
void split(char32_t first, char32_t last, std::size_t length, std::vector<ByteSequence>& out) {
  for (std::size_t tail = 1; tail < length; ++tail) {
    const char32_t mask = (char32_t{1} << (6 * tail)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      split(first, first | mask, length, out);
      split((first | mask) + 1, last, length, out);
      return;
    }
    if ((last & mask) != mask) {
      split(first, (last & ~mask) - 1, length, out);
      split(last & ~mask, last, length, out);
      return;
    }
  }
  char low[kUtf8BytesMax];
  char high[kUtf8BytesMax];
  put_utf8(first, low);
  put_utf8(last, high);
  ByteSequence sequence;
  for (std::size_t i = 0; i < length; ++i)
    sequence.push_back({static_cast<std::uint8_t>(low[i]), static_cast<std::uint8_t>(high[i])});
  out.push_back(std::move(sequence));
}

}  // namespace

CodePointSet normalized(CodePointSet set) {
  CodePointSet scalars;
  for (const auto& [first, last] : set) {
    if (first > last) continue;
    if (first <= kBeforeSurrogates) scalars.push_back({first, std::min(last, kBeforeSurrogates)});
    if (last >= kAfterSurrogates) {
      scalars.push_back({std::max(first, kAfterSurrogates), std::min(last, kCodePointMax)});
    }
  }
  std::ranges::sort(scalars, {}, &CodePointRange::first);
  CodePointSet joined;
  for (const CodePointRange& range : scalars) {
    if (!joined.empty() && range.first <= joined.back().last + 1) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

CodePointSet complement(const CodePointSet& set) {
  CodePointSet gaps;
  char32_t next = 0;
  for (const auto& [first, last] : set) {
    if (first > next) gaps.push_back({next, first - 1});
    next = last + 1;
  }
  if (next <= kCodePointMax) gaps.push_back({next, kCodePointMax});
  return normalized(std::move(gaps));
}

CodePointSet all_code_points() {
  return complement({});
}

std::vector<ByteSequence> utf8_sequences(const CodePointSet& set) {
  static constexpr char32_t kEnds[] = {0x7F, 0x7FF, 0xFFFF, kCodePointMax};
  std::vector<ByteSequence> out;
  for (const auto& [range_first, last] : set) {
    char32_t first = range_first;
    for (std::size_t length = 1; length <= 4 && first <= last; ++length) {
      if (first > kEnds[length - 1]) continue;
      const char32_t end = std::min(last, kEnds[length - 1]);
      split(first, end, length, out);
      first = end + 1;
    }
  }
  return out;
}

char32_t take_code_point(std::string_view& text) {
  const auto lead = static_cast<std::uint8_t>(text[0]);
  const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t c = length == 1 ? lead : lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i)
    c = (c << 6) | (static_cast<std::uint8_t>(text[i]) & 0x3F);
  text.remove_prefix(length);
  return c;
}

bool is_valid_utf8(std::string_view text) {
  static const auto kSequences = utf8_sequences(all_code_points());
  while (!text.empty()) {
    const auto fits = [&](const ByteSequence& sequence) {
      if (sequence.size() > text.size()) return false;
      for (std::size_t i = 0; i < sequence.size(); ++i) {
        const auto byte = static_cast<std::uint8_t>(text[i]);
        if (byte < sequence[i].first || byte > sequence[i].last) return false;
      }
      return true;
    };
    const auto found = std::ranges::find_if(kSequences, fits);
    if (found == kSequences.end()) return false;
    text.remove_prefix(found->size());
  }
  return true;
}

std::string json_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<std::uint8_t>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  return out;
}

}  // namespace penstock::grammar
