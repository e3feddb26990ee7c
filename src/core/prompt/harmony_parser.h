// HarmonyParser: reads an answer of gpt-oss: messages with a header (channel, recipient), text and
// an end.
//
// Stages: header -> body -> between -> header. The channel "analysis" is reasoning; a recipient
// "functions.NAME" is a call, whose body is passed on as JSON while it streams; everything else is
// content. An answer without a header is content; so is a header that never ends, a call whose body
// is no JSON object, and what follows arguments that break.
//
// It reads special tokens by their spelling, so the detokenizer must keep them. Stop strings count
// in content only.
//
// Invariants and concurrency: as OutputParser. Source: the public harmony format guide.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/prompt/json_cursor.h"
#include "core/prompt/stepped_parser.h"

namespace penstock::prompt {

class HarmonyParser final : public SteppedParser {
 public:
  enum class Start : std::uint8_t { kHeader, kReasoning, kContent };
  // A header longer than this is text.
  static constexpr std::size_t kHeaderBytesMax = 1024;

  HarmonyParser(Start start, std::vector<std::string> tools, std::vector<std::string> stop);

  void finish(std::vector<OutputEvent>& events) override;
  bool stopped() const override { return stage_ == Stage::kFinished; }
  bool in_reasoning() const override { return stage_ == Stage::kReasoning; }

 private:
  enum class Stage : std::uint8_t {
    kHeader,
    kReasoning,
    kContent,
    kCall,     // the body of a call
    kBetween,  // behind the end of a message
    kFinished,
  };

  bool step(MoreText more, std::vector<OutputEvent>& events) override;
  bool header(MoreText more);
  bool text(MoreText more, std::vector<OutputEvent>& events);
  bool call(MoreText more, std::vector<OutputEvent>& events);
  bool between(MoreText more);
  void open(std::string_view header);
  void end_call(std::vector<OutputEvent>& events);

  Stage stage_;
  std::vector<std::string> tools_;
  std::size_t stop_count_;
  std::vector<std::string> content_markers_;  // stop strings, then the ends of a message
  std::vector<std::string> ends_;

  // The call that is being read.
  std::string name_;
  bool call_begun_ = false;
  bool call_done_ = false;
  JsonCursor cursor_;
};

}  // namespace penstock::prompt
