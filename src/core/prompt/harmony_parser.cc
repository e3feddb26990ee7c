#include "core/prompt/harmony_parser.h"

#include <algorithm>
#include <utility>

#include "core/prompt/harmony_tokens.h"
#include "core/prompt/json_call.h"

namespace penstock::prompt {
namespace {

using namespace harmony;  // NOLINT: seven tokens
using Kind = OutputEvent::Kind;

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kFunctions = "functions.";

// The word behind `key` in a header; empty when there is none.
std::string_view word_behind(std::string_view header, std::string_view key) {
  const std::size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + key.size());
  return header.substr(0, std::min(header.find_first_of(" \t\r\n<"), header.size()));
}

// Whether a header may begin with `text`; role names are those behind <|start|>.
bool may_begin_header(std::string_view text) {
  constexpr std::string_view kBegins[] = {kChannel, kConstrain, kMessage, "to=", "assistant"};
  return std::ranges::any_of(kBegins, [&](std::string_view begin) {
    return text.starts_with(begin) || begin.starts_with(text);
  });
}

}  // namespace

HarmonyParser::HarmonyParser(Start start, std::vector<std::string> tools,
                             std::vector<std::string> stop)
    : stage_(start == Start::kHeader      ? Stage::kHeader
             : start == Start::kReasoning ? Stage::kReasoning
                                          : Stage::kContent),
      tools_(std::move(tools)),
      stop_count_(stop.size()),
      content_markers_(std::move(stop)) {
  for (const std::string_view end : {kEnd, kCall, kReturn, kStart}) {
    content_markers_.emplace_back(end);
    ends_.emplace_back(end);
  }
}

void HarmonyParser::finish(std::vector<OutputEvent>& events) {
  run(MoreText::kEnded, events);
  if (stage_ == Stage::kCall) end_call(events);
  stage_ = Stage::kFinished;
}

// One move; false when nothing more is certain.
bool HarmonyParser::step(MoreText more, std::vector<OutputEvent>& events) {
  switch (stage_) {
    case Stage::kHeader:
      return header(more);
    case Stage::kReasoning:
    case Stage::kContent:
      return text(more, events);
    case Stage::kCall:
      return call(more, events);
    case Stage::kBetween:
      return between(more);
    case Stage::kFinished:
      break;
  }
  return false;
}

bool HarmonyParser::header(MoreText more) {
  const std::size_t begin = std::min(buffer_.find_first_not_of(kSpace), buffer_.size());
  if (begin == buffer_.size() && more == MoreText::kMayFollow) return false;
  const std::size_t message = std::string_view(buffer_).substr(0, kHeaderBytesMax).find(kMessage);
  if (!may_begin_header(std::string_view(buffer_).substr(begin)) ||
      (message == std::string::npos &&
       (more == MoreText::kEnded || buffer_.size() >= kHeaderBytesMax))) {
    stage_ = Stage::kContent;
    return !buffer_.empty();
  }
  if (message == std::string::npos) return false;
  open(std::string_view(buffer_).substr(0, message));
  buffer_.erase(0, message + kMessage.size());
  return true;
}

// Decides by its header what a message is.
void HarmonyParser::open(std::string_view header) {
  const std::string_view channel = word_behind(header, kChannel);
  std::string_view recipient = word_behind(header, "to=");
  const bool function = recipient.starts_with(kFunctions);
  if (function) recipient.remove_prefix(kFunctions.size());
  const bool known = std::ranges::find(tools_, recipient) != tools_.end();
  if (!tools_.empty() && !recipient.empty() && (function || known)) {
    stage_ = Stage::kCall;
    name_ = recipient;
    call_begun_ = false;
    call_done_ = false;
    cursor_ = JsonCursor();
  } else {
    stage_ = channel == "analysis" ? Stage::kReasoning : Stage::kContent;
  }
}

bool HarmonyParser::text(MoreText more, std::vector<OutputEvent>& events) {
  const bool reasoning = stage_ == Stage::kReasoning;
  const std::size_t stops = reasoning ? 0 : stop_count_;
  const MarkerHit hit = scan(buffer_, reasoning ? ends_ : content_markers_, more);
  append_event(reasoning ? Kind::kReasoning : Kind::kContent,
               std::string_view(buffer_).substr(0, hit.safe), events);
  if (hit.marker == kNoMarker) {
    buffer_.erase(0, hit.safe);
    return false;
  }
  if (hit.marker < stops) {
    stop_string_ = content_markers_[hit.marker];
    stage_ = Stage::kFinished;
    return true;
  }
  // A message that isn't ended before the next begins.
  const bool next = ends_[hit.marker - stops] == kStart;
  buffer_.erase(0, hit.safe + (next ? 0 : hit.length));
  stage_ = Stage::kBetween;
  return true;
}

bool HarmonyParser::call(MoreText more, std::vector<OutputEvent>& events) {
  // The end of the message is looked for first: its mark is no part of the arguments.
  const MarkerHit hit = scan(buffer_, ends_, more);
  const std::size_t size = hit.safe;
  for (std::size_t at = 0; at < size; ++at) {
    const char c = buffer_[at];
    if (kSpace.contains(c) && (!call_begun_ || call_done_)) continue;
    if (!call_begun_ && c != '{') {  // no arguments: text, as it stands
      buffer_.erase(0, at);
      stage_ = Stage::kContent;
      return true;
    }
    if (!call_begun_) events.push_back({Kind::kToolBegin, name_});
    call_begun_ = true;
    saw_tool_call_ = true;
    std::string passed;
    const auto step = call_done_ ? JsonCursor::Step::kBad : cursor_.push(c, passed);
    append_event(Kind::kToolArguments, passed, events);
    if (step == JsonCursor::Step::kBad) {  // broken: completed, and the rest is text
      std::string rest(call_done_ ? std::string_view() : cursor_.held());
      rest.append(buffer_, at);
      end_call(events);
      buffer_ = std::move(rest);
      stage_ = Stage::kContent;
      return true;
    }
    call_done_ = step == JsonCursor::Step::kDone;
    if (call_done_) events.push_back({Kind::kToolEnd, ""});
  }
  const bool ends = hit.marker != kNoMarker;
  buffer_.erase(0, size);
  if (!ends) return false;
  end_call(events);
  if (ends_[hit.marker] != kStart) buffer_.erase(0, hit.length);
  stage_ = Stage::kBetween;
  return true;
}

// The body is over, whole or not.
void HarmonyParser::end_call(std::vector<OutputEvent>& events) {
  if (call_done_) return;
  if (!call_begun_) {
    events.push_back({Kind::kToolBegin, name_});
    events.push_back({Kind::kToolArguments, "{}"});
  } else {
    std::string closing;
    cursor_.close(0, closing);
    append_event(Kind::kToolArguments, closing, events);
  }
  events.push_back({Kind::kToolEnd, ""});
  call_begun_ = true;
  call_done_ = true;
  saw_tool_call_ = true;
}

// White space between messages is layout; what is no message is content.
bool HarmonyParser::between(MoreText more) {
  const std::size_t at = std::min(buffer_.find_first_not_of(kSpace), buffer_.size());
  const std::string_view rest = std::string_view(buffer_).substr(at);
  if (rest.empty()) {
    if (more == MoreText::kEnded) buffer_.clear();
    return false;
  }
  if (rest.starts_with(kStart)) {
    buffer_.erase(0, at + kStart.size());
    stage_ = Stage::kHeader;
    return true;
  }
  if (more == MoreText::kMayFollow && kStart.starts_with(rest)) return false;
  stage_ = Stage::kContent;
  return true;
}

}  // namespace penstock::prompt
