#include "core/prompt/plain_parser.h"

#include <utility>

namespace penstock::prompt {

void PlainParser::finish(std::vector<OutputEvent>& events) {
  run(MoreText::kEnded, events);
  finished_ = true;
}

bool PlainParser::step(MoreText more, std::vector<OutputEvent>& events) {
  const MarkerHit hit = scan(buffer_, stop_, more);
  if (hit.safe > 0) events.push_back({OutputEvent::Kind::kContent, buffer_.substr(0, hit.safe)});
  buffer_.erase(0, hit.safe);
  if (hit.marker == kNoMarker) return false;
  finished_ = true;
  stop_string_ = stop_[hit.marker];
  return true;
}

}  // namespace penstock::prompt
