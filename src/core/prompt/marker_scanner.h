// scan(): finds the first of several markers in streamed text, holding back as little as may be.
//
// Looks at the buffer: what lies before the leftmost marker is safe to release; if there is none,
// all but the longest tail that is a proper prefix of some marker. Two markers at one position: the
// shorter one, since it is complete first; so the outcome does not depend on how the text was cut.
// Markers are few and short, so a plain search per marker is enough.
//
// Concurrency: stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace penstock::prompt {

inline constexpr std::size_t kNoMarker = static_cast<std::size_t>(-1);

enum class MoreText : std::uint8_t { kMayFollow, kEnded };

struct MarkerHit {
  std::size_t safe = 0;            // bytes before the marker, or that can't be part of one
  std::size_t marker = kNoMarker;  // index into the markers, kNoMarker if none is certain
  std::size_t length = 0;          // of the marker
};

// `markers` holds no empty string.
MarkerHit scan(std::string_view buffer, std::span<const std::string> markers, MoreText more);

}  // namespace penstock::prompt
