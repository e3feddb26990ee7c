#include "core/prompt/deepseek_parser.h"

#include <boost/json.hpp>

#include "core/prompt/deepseek_tokens.h"
#include "core/prompt/json_cursor.h"

namespace penstock::prompt {
namespace {

using Kind = OutputEvent::Kind;

// "<｜DSML｜" opens every tag of a tool block and "</｜DSML｜" closes it.
const std::string kOpen = std::string("<") + std::string(kDsml);
const std::string kClose = std::string("</") + std::string(kDsml);

const std::vector<std::string> kToolBlockMarkers = {"invoke name=\"", kClose + "tool_calls>",
                                                    kClose + " calls>", kClose + "function_calls>"};
const std::vector<std::string> kQuote = {"\""};
const std::vector<std::string> kArgumentMarkers = {"parameter name=\"", kClose};
const std::vector<std::string> kTypeMarkers = {"true\">", "false\">"};
const std::vector<std::string> kValueMarkers = {kClose};
const std::vector<std::string> kNone = {};

constexpr std::size_t kValueDepthMax = 128;

bool is_json(std::string_view text) {
  boost::json::error_code error;
  boost::json::parse_options options;
  options.max_depth = kValueDepthMax;
  boost::json::parse(text, error, {}, options);
  return !error;
}

}  // namespace

DeepSeekParser::DeepSeekParser(bool starts_in_reasoning, ToolMarkup tools,
                               std::vector<std::string> stop)
    : stage_(starts_in_reasoning ? Stage::kReasoning : Stage::kContent),
      tools_(tools),
      stop_count_(stop.size()),
      content_markers_(std::move(stop)) {
  content_markers_.emplace_back(kThinkEnd);
  reasoning_markers_.emplace_back(kThinkEnd);
  if (tools != ToolMarkup::kAsText) {
    content_markers_.push_back(kOpen);
    reasoning_markers_.push_back(kOpen);
  }
}

void DeepSeekParser::finish(std::vector<OutputEvent>& events) {
  run(MoreText::kEnded, events);
  while (stage_ == Stage::kJsonValue && ends_at_closed_tag()) {
    end_at_closed_tag(events);
    run(MoreText::kEnded, events);
  }
  switch (stage_) {
    case Stage::kStringValue:
    case Stage::kJsonValue:
      end_value(events);
      [[fallthrough]];
    case Stage::kArguments:
      close_call(events);
      break;
    case Stage::kParameterName:
    case Stage::kParameterType:
      // A parameter whose value never came: its name is already out, so it gets null.
      if (stage_ == Stage::kParameterName) emit(Kind::kToolArguments, "\": ", events);
      emit(Kind::kToolArguments, "null", events);
      close_call(events);
      break;
    default:
      break;
  }
  stage_ = Stage::kFinished;
}

// Of an answer that is calls or text: once it can't begin with a mark, all that follows is text.
void DeepSeekParser::look_for_text() {
  const std::size_t at = buffer_.find_first_not_of(" \t\r\n");
  if (at == std::string::npos) return;
  const std::string_view rest = std::string_view(buffer_).substr(at);
  const auto may_begin_with = [rest](std::string_view mark) {
    return rest.starts_with(mark) || mark.starts_with(rest);
  };
  if (may_begin_with(kOpen) || may_begin_with(kThinkEnd)) return;
  tools_ = ToolMarkup::kAsText;
  content_markers_.resize(stop_count_);
}

// Consumes up to one marker; false when nothing more is certain.
bool DeepSeekParser::step(MoreText more, std::vector<OutputEvent>& events) {
  if (stage_ == Stage::kJsonValue) return json_value(more, events);
  const bool text_stage = stage_ == Stage::kReasoning || stage_ == Stage::kContent;
  if (text_stage && skip_newline_) {
    if (buffer_.empty()) return false;
    skip_newline_ = false;
    if (buffer_.front() == '\n') buffer_.erase(0, 1);
  }
  if (stage_ == Stage::kContent && tools_ == ToolMarkup::kFirstOnly) look_for_text();
  MarkerHit hit = scan(buffer_, markers(), more);
  std::size_t release = hit.safe;
  const bool ends_text = hit.marker != kNoMarker && hit.marker >= stop_count_;
  if (text_stage && (stage_ == Stage::kReasoning || ends_text || hit.marker == kNoMarker)) {
    // Newlines before "</think>" or a tool block are layout: held back until we know.
    const bool layout = hit.marker != kNoMarker || more == MoreText::kMayFollow;
    while (layout && release > 0 && buffer_[release - 1] == '\n')
      --release;
  }
  unmatched(std::string_view(buffer_).substr(0, release), events);
  if (hit.marker == kNoMarker) {
    buffer_.erase(0, release);
    return false;
  }
  buffer_.erase(0, hit.safe + hit.length);
  matched(hit.marker, events);
  return true;
}

const std::vector<std::string>& DeepSeekParser::markers() const {
  switch (stage_) {
    case Stage::kReasoning:
      return reasoning_markers_;
    case Stage::kContent:
      return content_markers_;
    case Stage::kToolBlock:
      return kToolBlockMarkers;
    case Stage::kToolName:
    case Stage::kParameterName:
      return kQuote;
    case Stage::kArguments:
      return kArgumentMarkers;
    case Stage::kParameterType:
      return kTypeMarkers;
    case Stage::kStringValue:
    case Stage::kJsonValue:
      return kValueMarkers;
    case Stage::kFinished:
      break;
  }
  return kNone;
}

void DeepSeekParser::unmatched(std::string_view text, std::vector<OutputEvent>& events) {
  switch (stage_) {
    case Stage::kReasoning:
      emit(Kind::kReasoning, text, events);
      break;
    case Stage::kContent:
      emit(Kind::kContent, text, events);
      break;
    case Stage::kToolName:
      name_ += text;
      break;
    case Stage::kParameterName:
    case Stage::kStringValue: {
      std::string escaped;
      append_json_escaped(text, escaped);
      emit(Kind::kToolArguments, escaped, events);
      break;
    }
    default:
      break;  // layout between tags
  }
}

void DeepSeekParser::matched(std::size_t marker, std::vector<OutputEvent>& events) {
  switch (stage_) {
    case Stage::kReasoning:
      enter(marker == 0 ? Stage::kContent : Stage::kToolBlock);
      break;
    case Stage::kContent:
      if (marker < stop_count_) {
        stop_string_ = content_markers_[marker];
        enter(Stage::kFinished);
      } else if (marker > stop_count_) {
        enter(Stage::kToolBlock);
      }  // else a stray "</think>": dropped
      break;
    case Stage::kToolBlock:
      enter(marker == 0 ? Stage::kToolName : Stage::kFinished);
      break;
    case Stage::kToolName:
      emit(Kind::kToolBegin, name_, events);
      if (name_.empty()) events.push_back({Kind::kToolBegin, ""});
      saw_tool_call_ = true;
      first_parameter_ = true;
      name_.clear();
      enter(Stage::kArguments);
      break;
    case Stage::kArguments:
      if (marker == 0) {
        emit(Kind::kToolArguments, first_parameter_ ? "{\"" : ", \"", events);
        first_parameter_ = false;
        enter(Stage::kParameterName);
      } else {
        close_call(events);
        enter(Stage::kToolBlock);
      }
      break;
    case Stage::kParameterName:
      emit(Kind::kToolArguments, "\": ", events);
      enter(Stage::kParameterType);
      break;
    case Stage::kParameterType:
      if (marker == 0) emit(Kind::kToolArguments, "\"", events);
      enter(marker == 0 ? Stage::kStringValue : Stage::kJsonValue);
      break;
    case Stage::kStringValue:
      end_value(events);
      enter(Stage::kArguments);
      break;
    case Stage::kJsonValue:  // json_value()
    case Stage::kFinished:
      break;
  }
}

// The same as step() for a value that is held back.
bool DeepSeekParser::json_value(MoreText more, std::vector<OutputEvent>& events) {
  const MarkerHit hit = scan(buffer_, kValueMarkers, more);
  for (std::size_t i = 0; i < hit.safe; ++i) {
    if (follow_string(buffer_[i])) continue;
    value_.append(buffer_, 0, i);
    buffer_.erase(0, i);
    end_at_closed_tag(events);
    return true;
  }
  value_.append(buffer_, 0, hit.safe);
  buffer_.erase(0, hit.safe + hit.length);
  if (hit.marker == kNoMarker) return false;
  if (in_string_ || ends_at_closed_tag()) {
    if (closed_at_ == kNoMarker) closed_at_ = value_.size();
    value_ += kClose;
    escaped_ = false;
    if (!in_string_) end_at_closed_tag(events);
    return true;
  }
  end_value(events);
  enter(Stage::kArguments);
  return true;
}

// Takes a byte of the value; false when it can't stand in the string that it is in, and that string
// has met a closing tag.
bool DeepSeekParser::follow_string(char c) {
  if (in_string_ && closed_at_ != kNoMarker && static_cast<unsigned char>(c) < 0x20) return false;
  if (c == '"' && !escaped_) in_string_ = !in_string_;
  escaped_ = in_string_ && c == '\\' && !escaped_;
  return true;
}

bool DeepSeekParser::ends_at_closed_tag() const {
  return closed_at_ != kNoMarker && !is_json(value_);
}

// What was taken for a string has been the text behind the value.
void DeepSeekParser::end_at_closed_tag(std::vector<OutputEvent>& events) {
  buffer_.insert(0, value_, closed_at_ + kClose.size());
  value_.resize(closed_at_);
  end_value(events);
  enter(Stage::kArguments);
}

void DeepSeekParser::enter(Stage stage) {
  stage_ = stage;
  skip_newline_ = stage == Stage::kContent;
}

void DeepSeekParser::end_value(std::vector<OutputEvent>& events) {
  if (stage_ == Stage::kStringValue) {
    emit(Kind::kToolArguments, "\"", events);
    return;
  }
  std::string text;
  const bool json = is_json(value_);
  if (!json) {
    text += '"';
    append_json_escaped(value_, text);
    text += '"';
  }
  emit(Kind::kToolArguments, json ? value_ : text, events);
  value_.clear();
  in_string_ = false;
  escaped_ = false;
  closed_at_ = kNoMarker;
}

void DeepSeekParser::close_call(std::vector<OutputEvent>& events) {
  emit(Kind::kToolArguments, first_parameter_ ? "{}" : "}", events);
  events.push_back({Kind::kToolEnd, ""});
}

// Joins with the previous event of the same kind, so that a token yields few events.
void DeepSeekParser::emit(Kind kind, std::string_view text, std::vector<OutputEvent>& events) {
  if (text.empty()) return;
  const bool joins = kind != Kind::kToolBegin && !events.empty() && events.back().kind == kind;
  if (joins) {
    events.back().text += text;
  } else {
    events.push_back({kind, std::string(text)});
  }
}

}  // namespace penstock::prompt
