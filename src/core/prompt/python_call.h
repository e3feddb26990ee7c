// PythonCall: reads one tool call that a model writes as Python, while it streams: f(a="x", b=[1]).
//
// Arguments have names; values are strings in either quote, numbers, True, False, None, lists and
// dictionaries with string keys. Each byte is turned into the JSON that it stands for, which a
// JsonCall reads: what holds of that holds here. What Python allows beyond (positional arguments,
// expressions, tuples, octal escapes, strings in three quotes) is no call, or breaks off one that
// has begun.
//
// Invariants: as JsonCall; rest() is the text as the model wrote it. Errors: Step::kNotACall.
// Concurrency: one owner. Source: docs/protocol/chat-encodings.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/prompt/json_call.h"

namespace penstock::prompt {

class PythonCall final : public CallReader {
 public:
  // A call of another name than one of `names` is none.
  explicit PythonCall(const std::vector<std::string>* names) : json_(names) {}

  Step push(char c, std::vector<OutputEvent>& events) override;
  void cut(std::vector<OutputEvent>& events) override { json_.cut(events); }
  bool begun() const override { return json_.begun(); }
  const std::string& rest() const override { return rest_; }

 private:
  enum class State : std::uint8_t {
    kName,         // of the function
    kParenthesis,  // behind it
    kKey,          // the name of an argument, or the end of the call
    kEquals,       // behind it
    kValue,        // a value, or the end of a list
    kDictKey,
    kColon,
    kString,
    kEscape,
    kHex,
    kNumber,
    kWord,
    kAfterValue,
  };

  // Appends what the byte stands for to json_text_; false when this is no call.
  bool take(char c);
  bool in_name(char c);
  void begin_call();
  bool in_key(char c);
  bool in_value(char c);
  bool in_string(char c);
  bool in_escape(char c);
  bool in_hex(char c);
  bool in_word(char c);
  bool after_value(char c);
  bool close(char c);
  void begin_item();
  void begin_string(char quote, State after);

  JsonCall json_;
  State state_ = State::kName;
  State after_string_ = State::kAfterValue;
  std::string open_;  // the brackets that are open
  std::string name_;  // of the function, until the call has begun
  std::string word_;  // an argument's name or a word, so far
  char quote_ = '"';
  bool comma_ = false;        // one is held back until something follows it
  std::size_t hex_left_ = 0;  // digits of an escape that are still to come
  std::uint32_t code_ = 0;    // what the escape stands for, so far
  std::string json_text_;
  std::string rest_;
};

}  // namespace penstock::prompt
