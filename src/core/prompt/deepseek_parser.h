// DeepSeekParser: reads reasoning, text and DSML tool calls of DeepSeek V3, V3.2, V4 and V4.1
// answers.
//
// One reader serves the versions because it keys on the inner words of the tags, not on the spaces
// inside them. Stages: reasoning -> content -> tool block -> name -> arguments -> parameter name ->
// type -> value. String parameters are JSON-escaped on the way; others are held back until they are
// whole, and pass if they are JSON, else as a string. They go on over a closing tag inside a JSON
// string; where that string never becomes JSON, they end at the tag after all.
//
// Invariants and concurrency: as OutputParser. Source: docs/protocol/chat-encodings.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/prompt/stepped_parser.h"

namespace penstock::prompt {

// kFirstOnly: a call is read only where no text came before it.
enum class ToolMarkup : std::uint8_t { kParse, kFirstOnly, kAsText };

class DeepSeekParser : public SteppedParser {
 public:
  DeepSeekParser(bool starts_in_reasoning, ToolMarkup tools, std::vector<std::string> stop);

  void finish(std::vector<OutputEvent>& events) override;
  bool stopped() const override { return stage_ == Stage::kFinished; }
  bool in_reasoning() const override { return stage_ == Stage::kReasoning; }

 private:
  enum class Stage : std::uint8_t {
    kReasoning,
    kContent,
    kToolBlock,
    kToolName,
    kArguments,
    kParameterName,
    kParameterType,
    kStringValue,
    kJsonValue,
    kFinished,
  };

  bool step(MoreText more, std::vector<OutputEvent>& events) override;
  void look_for_text();
  void enter(Stage stage);
  const std::vector<std::string>& markers() const;
  void unmatched(std::string_view text, std::vector<OutputEvent>& events);
  void matched(std::size_t marker, std::vector<OutputEvent>& events);
  bool json_value(MoreText more, std::vector<OutputEvent>& events);
  bool follow_string(char c);
  bool ends_at_closed_tag() const;
  void end_at_closed_tag(std::vector<OutputEvent>& events);
  void end_value(std::vector<OutputEvent>& events);
  void close_call(std::vector<OutputEvent>& events);
  static void emit(OutputEvent::Kind kind, std::string_view text, std::vector<OutputEvent>& events);

  Stage stage_;
  ToolMarkup tools_;
  bool skip_newline_ = true;  // one newline right after a stage begins is not part of the text
  bool first_parameter_ = true;
  std::size_t stop_count_;
  std::vector<std::string> content_markers_;  // stop strings, "</think>", then the DSML mark
  std::vector<std::string> reasoning_markers_;
  std::string name_;
  // Of the parameter that is not a string, so far: its text, where it stands in a JSON string, and
  // the first closing tag that was met in one.
  std::string value_;
  bool in_string_ = false;
  bool escaped_ = false;
  std::size_t closed_at_ = kNoMarker;
};

}  // namespace penstock::prompt
