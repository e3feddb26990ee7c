// OutputParser: splits a model's answer into reasoning, visible text and tool calls while it
// streams.
//
// Fed with text in any pieces, it releases everything but the longest tail that could still become
// a marker, so the events of an answer, joined by kind, do not depend on how it was cut. Malformed
// markup degrades to text or is dropped inside a tool block; no byte of visible text is lost.
//
// Invariants: kToolBegin, its kToolArguments and kToolEnd follow one another with nothing between;
// the arguments of one call join to a JSON object. After a stop string matched, stopped() is true
// and further text is ignored. Errors: none; any bytes are accepted. Concurrency: one parser per
// choice, one thread.
// Source: facts on the public recipe's state machine, docs/protocol/chat-encodings.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::prompt {

struct OutputEvent {
  enum class Kind : std::uint8_t { kReasoning, kContent, kToolBegin, kToolArguments, kToolEnd };
  Kind kind = Kind::kContent;
  std::string text;  // kToolBegin: the function's name; kToolEnd: empty

  bool operator==(const OutputEvent&) const = default;
};

class OutputParser {
 public:
  virtual ~OutputParser() = default;
  // Takes the next piece of text and appends the events that are certain by now.
  virtual void feed(std::string_view text, std::vector<OutputEvent>& events) = 0;
  // The answer has ended: releases what was held back and closes an open tool call.
  virtual void finish(std::vector<OutputEvent>& events) = 0;
  // A stop string was met; generation can end.
  virtual bool stopped() const = 0;
  // The stop string that was met; empty when none was. Valid as long as the parser.
  virtual std::string_view stop_string() const = 0;
  // Text fed now counts as reasoning.
  virtual bool in_reasoning() const = 0;
  virtual bool saw_tool_call() const = 0;
};

}  // namespace penstock::prompt
