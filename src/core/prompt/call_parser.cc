#include "core/prompt/call_parser.h"

#include <utility>

#include "core/prompt/python_call.h"

namespace penstock::prompt {
namespace {

using Kind = OutputEvent::Kind;

constexpr std::string_view kSpace = " \t\r\n";

// Whether `text` begins with `mark`, or may when more of it comes.
enum class Begins : std::uint8_t { kNo, kYes, kPerhaps };
Begins begins(std::string_view text, std::string_view mark, MoreText more) {
  if (mark.empty()) return Begins::kNo;
  if (text.starts_with(mark)) return Begins::kYes;
  const bool open = more == MoreText::kMayFollow && mark.starts_with(text);
  return open ? Begins::kPerhaps : Begins::kNo;
}

}  // namespace

CallParser::CallParser(CallMarkup markup, Start start, std::vector<std::string> stop)
    : markup_(std::move(markup)),
      stage_(start == Start::kAnswer      ? Stage::kStart
             : start == Start::kReasoning ? Stage::kReasoning
                                          : Stage::kContent),
      skip_newlines_(start == Start::kReasoning),
      stop_count_(stop.size()),
      content_markers_(std::move(stop)) {
  for (const std::string& mark : {markup_.think_close, markup_.call_open}) {
    if (mark.empty()) continue;
    content_markers_.push_back(mark);
    reasoning_markers_.push_back(mark);
  }
}

void CallParser::finish(std::vector<OutputEvent>& events) {
  run(MoreText::kEnded, events);
  stage_ = Stage::kFinished;
}

// One move; false when nothing more is certain.
bool CallParser::step(MoreText more, std::vector<OutputEvent>& events) {
  switch (stage_) {
    case Stage::kStart:
      return start(more);
    case Stage::kReasoning:
    case Stage::kContent:
      return text(more, events);
    case Stage::kCall:
      return call(more, events);
    case Stage::kAfterCall:
      return after_call(more);
    case Stage::kFinished:
      break;
  }
  return false;
}

void CallParser::enter(Stage stage, Newlines leading) {
  stage_ = stage;
  skip_newlines_ = leading == Newlines::kLayout;
}

void CallParser::enter_call(std::string mark, Stage from) {
  mark_ = std::move(mark);
  before_call_ = from;
  call_.reset();
  stage_ = Stage::kCall;
}

bool CallParser::has_bare_call(std::string_view rest) const {
  return markup_.bare && (rest.starts_with('{') || rest.starts_with('['));
}

// Behind a call, where another may follow without a mark.
bool CallParser::has_next_call(std::string_view rest) const {
  if (rest.starts_with('{')) return markup_.bare || in_list_;
  const char c = rest.empty() ? ' ' : rest.front();
  const bool named = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  return markup_.bare && in_list_ && named;
}

bool CallParser::start(MoreText more) {
  const std::size_t at = buffer_.find_first_not_of(kSpace);
  if (at == std::string::npos) {
    if (more == MoreText::kMayFollow) return false;
    enter(Stage::kContent, Newlines::kText);
    return true;
  }
  const std::string_view rest = std::string_view(buffer_).substr(at);
  const Begins thinks = begins(rest, markup_.think_open, more);
  if (thinks == Begins::kPerhaps) return false;
  if (thinks == Begins::kYes) {
    buffer_.erase(0, at + markup_.think_open.size());
    enter(Stage::kReasoning, Newlines::kLayout);
  } else if (has_bare_call(rest)) {
    std::string space = buffer_.substr(0, at);
    buffer_.erase(0, at);
    enter_call(std::move(space), Stage::kContent);
  } else {
    enter(Stage::kContent, Newlines::kText);
  }
  return true;
}

bool CallParser::text(MoreText more, std::vector<OutputEvent>& events) {
  if (skip_newlines_) {
    buffer_.erase(0, std::min(buffer_.find_first_not_of('\n'), buffer_.size()));
    if (buffer_.empty()) return false;
    skip_newlines_ = false;
  }
  const bool reasoning = stage_ == Stage::kReasoning;
  const std::size_t stops = reasoning ? 0 : stop_count_;
  const auto& markers = reasoning ? reasoning_markers_ : content_markers_;
  const MarkerHit hit = scan(buffer_, markers, more);
  std::size_t release = hit.safe;
  // Newlines before the end of reasoning or a call are layout: held back until we know.
  const bool layout = hit.marker == kNoMarker
                          ? more == MoreText::kMayFollow && markers.size() > stops
                          : hit.marker >= stops;
  while (layout && release > 0 && buffer_[release - 1] == '\n')
    --release;
  append_event(reasoning ? Kind::kReasoning : Kind::kContent,
               std::string_view(buffer_).substr(0, release), events);
  if (hit.marker == kNoMarker) {
    buffer_.erase(0, release);
    return false;
  }
  std::string mark = buffer_.substr(release, hit.safe + hit.length - release);
  buffer_.erase(0, hit.safe + hit.length);
  if (hit.marker < stops) {
    stop_string_ = content_markers_[hit.marker];
    enter(Stage::kFinished, Newlines::kText);
  } else if (markers[hit.marker] == markup_.call_open) {
    enter_call(std::move(mark), stage_);
  } else {
    enter(Stage::kContent, Newlines::kLayout);  // in content a stray mark, dropped
  }
  return true;
}

bool CallParser::call(MoreText more, std::vector<OutputEvent>& events) {
  std::size_t at = 0;
  if (!call_) {
    at = std::min(buffer_.find_first_not_of(kSpace), buffer_.size());
    if ((markup_.list || markup_.bare) && !in_list_ && at < buffer_.size() && buffer_[at] == '[') {
      in_list_ = true;
      at = std::min(buffer_.find_first_not_of(kSpace, at + 1), buffer_.size());
    }
    mark_.append(buffer_, 0, at);
    if (at < buffer_.size()) {
      const auto* names = markup_.bare ? &markup_.names : nullptr;
      if (markup_.bare && in_list_ && buffer_[at] != '{') {
        call_ = std::make_unique<PythonCall>(names);
      } else {
        call_ = std::make_unique<JsonCall>(names);
      }
    }
  }
  while (call_ && at < buffer_.size()) {
    const CallReader::Step step = call_->push(buffer_[at++], events);
    saw_tool_call_ = saw_tool_call_ || call_->begun();
    if (step == CallReader::Step::kMore) continue;
    if (step == CallReader::Step::kNotACall) return not_a_call(at, events);
    buffer_.erase(0, at);
    stage_ = Stage::kAfterCall;
    return true;
  }
  if (more == MoreText::kMayFollow) {
    buffer_.clear();
    return false;
  }
  if (!call_ || !call_->begun()) return not_a_call(at, events);
  call_->cut(events);
  buffer_.clear();
  return false;
}

// Bytes up to `taken` in the buffer belong to what was no call, or no longer.
bool CallParser::not_a_call(std::size_t taken, std::vector<OutputEvent>& events) {
  std::string rest = call_ ? call_->rest() : std::string();
  rest.append(buffer_, taken);
  buffer_ = std::move(rest);
  if (call_ && call_->begun()) {
    stage_ = Stage::kAfterCall;
    return true;
  }
  in_list_ = false;
  // Only the mark is certainly text: what follows it may hold another.
  if (mark_.find_first_not_of(kSpace) == std::string::npos) {
    mark_.append(buffer_, 0, 1);
    buffer_.erase(0, 1);
  }
  append_event(before_call_ == Stage::kReasoning ? Kind::kReasoning : Kind::kContent, mark_,
               events);
  enter(before_call_, Newlines::kText);
  return true;
}

// White space between calls is layout; a separator is one only if a call follows.
bool CallParser::after_call(MoreText more) {
  const std::string_view separators = in_list_ ? " \t\r\n," : markup_.bare ? " \t\r\n;" : kSpace;
  const std::string_view close =
      markup_.bare && in_list_ ? std::string_view("]") : std::string_view(markup_.call_close);
  const std::size_t at = std::min(buffer_.find_first_not_of(separators), buffer_.size());
  const std::string_view rest = std::string_view(buffer_).substr(at);
  if (rest.empty() && more == MoreText::kMayFollow) return false;
  const Begins closes = begins(rest, close, more);
  if (closes == Begins::kPerhaps) return false;
  if (closes == Begins::kNo && has_next_call(rest)) {
    std::string mark = buffer_.substr(0, at);
    buffer_.erase(0, at);
    enter_call(std::move(mark), Stage::kContent);
    return true;
  }
  const std::size_t space =
      rest.empty() ? at : std::min(buffer_.find_first_not_of(kSpace), buffer_.size());
  buffer_.erase(0, closes == Begins::kYes ? at + close.size() : space);
  in_list_ = false;
  enter(Stage::kContent, Newlines::kLayout);
  return true;
}

}  // namespace penstock::prompt
