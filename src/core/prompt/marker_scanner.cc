#include "core/prompt/marker_scanner.h"

#include <algorithm>

namespace penstock::prompt {
namespace {

// Length of the longest proper prefix of `marker` that ends the buffer.
std::size_t open_tail(std::string_view buffer, std::string_view marker) {
  for (std::size_t n = std::min(buffer.size(), marker.size() - 1); n > 0; --n) {
    if (buffer.substr(buffer.size() - n) == marker.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

MarkerHit scan(std::string_view buffer, std::span<const std::string> markers, MoreText more) {
  MarkerHit hit{buffer.size(), kNoMarker, 0};
  std::size_t held = 0;
  for (std::size_t i = 0; i < markers.size(); ++i) {
    const std::size_t at = buffer.find(markers[i]);
    if (at != std::string_view::npos) {
      const bool shorter = at == hit.safe && markers[i].size() < hit.length;
      if (hit.marker == kNoMarker || at < hit.safe || shorter) hit = {at, i, markers[i].size()};
    }
    if (more == MoreText::kMayFollow) held = std::max(held, open_tail(buffer, markers[i]));
  }
  // A marker that is still open and begins before the complete one goes first: wait for it.
  const std::size_t open_at = buffer.size() - held;
  if (hit.marker == kNoMarker || open_at < hit.safe) return {open_at, kNoMarker, 0};
  return hit;
}

}  // namespace penstock::prompt
