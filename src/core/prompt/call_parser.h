// CallParser: reads reasoning, text and tool calls of models that write calls as JSON: Hermes and
// Qwen (<tool_call>{...}</tool_call>), Llama (bare, or after <|python_tag|>; or as Python, in a
// list: [f(a=1), g()]).
//
// Stages: start -> reasoning -> content -> call -> after a call -> content. Newlines around
// reasoning and calls are layout. What looks like a call and turns out not to be one is text, with
// the mark in front of it; a call that breaks after its arguments have begun is completed, and the
// rest is text. Stop strings count in content only.
//
// Invariants and concurrency: as OutputParser. Source: docs/protocol/chat-encodings.md.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/prompt/json_call.h"
#include "core/prompt/stepped_parser.h"

namespace penstock::prompt {

// How a family marks what is not text; an empty mark does not exist.
struct CallMarkup {
  std::string think_open;
  std::string think_close;
  std::string call_open;
  std::string call_close;
  // Calls may also begin the answer without a mark, if they name one of `names`; or stand in a list
  // there, as JSON or Python.
  bool bare = false;
  // Behind call_open stands a JSON array of calls, or one call.
  bool list = false;
  std::vector<std::string> names;
};

class CallParser : public SteppedParser {
 public:
  enum class Start : std::uint8_t { kAnswer, kReasoning, kContent };
  // `start`: what the prompt ended in; in kAnswer the model may begin with reasoning or a bare
  // call.
  CallParser(CallMarkup markup, Start start, std::vector<std::string> stop);

  void finish(std::vector<OutputEvent>& events) override;
  bool stopped() const override { return stage_ == Stage::kFinished; }
  bool in_reasoning() const override { return stage_ == Stage::kReasoning; }

 private:
  enum class Stage : std::uint8_t { kStart, kReasoning, kContent, kCall, kAfterCall, kFinished };
  enum class Newlines : std::uint8_t { kText, kLayout };

  bool step(MoreText more, std::vector<OutputEvent>& events) override;
  bool start(MoreText more);
  bool text(MoreText more, std::vector<OutputEvent>& events);
  bool call(MoreText more, std::vector<OutputEvent>& events);
  bool after_call(MoreText more);
  bool not_a_call(std::size_t taken, std::vector<OutputEvent>& events);
  void enter(Stage stage, Newlines leading);
  void enter_call(std::string mark, Stage from);
  bool has_bare_call(std::string_view rest) const;
  bool has_next_call(std::string_view rest) const;

  CallMarkup markup_;
  Stage stage_;
  Stage before_call_ = Stage::kContent;
  bool skip_newlines_;
  std::size_t stop_count_;
  std::vector<std::string> content_markers_;  // stop strings, end of thinking, begin of a call
  std::vector<std::string> reasoning_markers_;
  std::string mark_;  // layout and mark before the call that is being read
  bool in_list_ = false;
  std::unique_ptr<CallReader> call_;
};

}  // namespace penstock::prompt
