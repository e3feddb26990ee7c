// CallReader: reads one tool call while it streams. JsonCall: one that is written as a JSON object.
//
// {"name": "f", "arguments": {...}}: keys in any order, "parameters" for "arguments". Once the name
// is known, arguments go out byte by byte; before that they are held back. Arguments may also be a
// string that holds an object, null or missing. Text that turns out not to be such an object is
// kept in rest() as long as no event stands for it, so the caller can show it as text.
//
// Invariants: the events of one call are kToolBegin, kToolArguments, kToolEnd; its arguments join
// to a JSON object, even when the call is cut short or broken. What comes out does not depend on
// how the text was cut.
// Errors: Step::kNotACall. Concurrency: one owner.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/prompt/json_cursor.h"
#include "core/prompt/output_parser.h"

namespace penstock::prompt {

class CallReader {
 public:
  enum class Step : std::uint8_t { kMore, kDone, kNotACall };

  virtual ~CallReader() = default;
  virtual Step push(char c, std::vector<OutputEvent>& events) = 0;
  // The text ended or broke: ends what has begun.
  virtual void cut(std::vector<OutputEvent>& events) = 0;
  // An event has been made; what rest() holds comes after it.
  virtual bool begun() const = 0;
  // What was taken and no event stands for.
  virtual const std::string& rest() const = 0;
};

class JsonCall final : public CallReader {
 public:
  // With `names`, a call of another name or with other keys is not a call: for formats that don't
  // mark calls.
  explicit JsonCall(const std::vector<std::string>* names = nullptr) : names_(names) {}

  Step push(char c, std::vector<OutputEvent>& events) override;
  void cut(std::vector<OutputEvent>& events) override;
  bool begun() const override { return begun_; }
  const std::string& rest() const override { return rest_; }

 private:
  enum class Region : std::uint8_t { kNone, kKey, kName, kArguments, kArgumentsText, kOther };

  bool begin_value(char c);
  bool end_key();
  bool end_value(std::vector<OutputEvent>& events);
  void begin(std::vector<OutputEvent>& events);
  void end(std::vector<OutputEvent>& events);

  const std::vector<std::string>* names_;
  JsonCursor cursor_;
  Region region_ = Region::kNone;
  bool begun_ = false;
  bool ended_ = false;
  bool has_arguments_ = false;
  std::string text_;  // of the key or value being read, as it stands
  std::string key_;
  std::string name_;
  std::string arguments_;
  std::string rest_;
};

// Appends text, joined with the event before it when that is of the same kind.
void append_event(OutputEvent::Kind kind, std::string_view text, std::vector<OutputEvent>& events);

}  // namespace penstock::prompt
