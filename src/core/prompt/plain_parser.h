// PlainParser: the answer to a bare prompt: text as it comes, up to a stop string.
//
// Invariants and concurrency: as OutputParser; every event is kContent.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/prompt/marker_scanner.h"
#include "core/prompt/output_parser.h"

namespace penstock::prompt {

class PlainParser final : public OutputParser {
 public:
  // Stop strings are not empty.
  explicit PlainParser(std::vector<std::string> stop) : stop_(std::move(stop)) {}

  void feed(std::string_view text, std::vector<OutputEvent>& events) override;
  void finish(std::vector<OutputEvent>& events) override;
  bool stopped() const override { return finished_; }
  std::string_view stop_string() const override { return stop_string_; }
  bool in_reasoning() const override { return false; }
  bool saw_tool_call() const override { return false; }

 private:
  void run(MoreText more, std::vector<OutputEvent>& events);

  std::vector<std::string> stop_;
  std::string_view stop_string_;  // in stop_
  std::string buffer_;
  bool finished_ = false;
};

}  // namespace penstock::prompt
