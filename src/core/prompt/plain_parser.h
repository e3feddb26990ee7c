// PlainParser: the answer to a bare prompt: text as it comes, up to a stop string.
//
// Invariants and concurrency: as OutputParser; every event is kContent.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/prompt/stepped_parser.h"

namespace penstock::prompt {

class PlainParser final : public SteppedParser {
 public:
  // Stop strings are not empty.
  explicit PlainParser(std::vector<std::string> stop) : stop_(std::move(stop)) {}

  void finish(std::vector<OutputEvent>& events) override;
  bool stopped() const override { return finished_; }
  bool in_reasoning() const override { return false; }

 private:
  bool step(MoreText more, std::vector<OutputEvent>& events) override;

  std::vector<std::string> stop_;
  bool finished_ = false;
};

}  // namespace penstock::prompt
