// SteppedParser: what output parsers share: the text that isn't certain yet, and the loop over it.
//
// A parser says in step() what one move on the buffer is. Invariants, errors and concurrency: as
// OutputParser.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/prompt/marker_scanner.h"
#include "core/prompt/output_parser.h"

namespace penstock::prompt {

class SteppedParser : public OutputParser {
 public:
  void feed(std::string_view text, std::vector<OutputEvent>& events) final {
    if (stopped()) return;
    buffer_ += text;
    run(MoreText::kMayFollow, events);
  }
  std::string_view stop_string() const final { return stop_string_; }
  bool saw_tool_call() const final { return saw_tool_call_; }

 protected:
  // One move; false when nothing more is certain.
  virtual bool step(MoreText more, std::vector<OutputEvent>& events) = 0;
  // Steps until the parser has stopped or nothing more is certain.
  void run(MoreText more, std::vector<OutputEvent>& events) {
    while (!stopped() && step(more, events)) {
    }
    if (stopped()) buffer_.clear();
  }

  std::string buffer_;
  std::string_view stop_string_;  // one of the parser's markers
  bool saw_tool_call_ = false;
};

}  // namespace penstock::prompt
