// JsonCursor: follows one JSON object or array byte by byte, so that it can be passed on before it
// ends and still be completed when it is cut off.
//
// push() takes a byte and appends what has become certain: escapes are held back until they are
// whole, a comma until what follows it has begun, so close() can always complete what was passed
// on. A raw control character in a string, which models like to write, is escaped on the way.
//
// Invariants: what push() appended, then close(), is valid JSON, whatever the bytes.
// Units and shapes: at most kDepthMax containers are open.
// Errors: Step::kBad; the cursor is of no more use then. Concurrency: one owner.
// Source: RFC 8259.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::prompt {

// Appends `text` as the inside of a JSON string; UTF-8 passes through.
void append_json_escaped(std::string_view text, std::string& out);

class JsonCursor {
 public:
  static constexpr std::size_t kDepthMax = 128;
  static constexpr int kExponentDigitsMax = 8;  // readers of JSON refuse larger ones

  enum class Step : std::uint8_t { kMore, kDone, kBad };
  // What the next byte belongs to.
  enum class At : std::uint8_t {
    kValue,         // a value has to begin
    kFirstElement,  // a value or the end of an array
    kFirstKey,      // a key or the end of an object
    kKey,
    kColon,
    kAfterValue,  // a comma or the end of a container
    kString,
    kEscape,
    kHex,
    kLiteral,
    kNumber,
    kEnd,
  };

  // Takes a byte. kDone with the last byte of the value.
  Step push(char c, std::string& out);
  // Appends what completes the passed-on text down to `depth` open containers.
  void close(std::size_t depth, std::string& out) const;
  At at() const { return at_; }
  // The string that is being read is a key.
  bool in_key() const { return in_key_; }
  std::size_t depth() const { return open_.size(); }
  // Bytes taken and not passed on.
  std::string_view held() const { return held_; }

 private:
  Step in_structure(char c, std::string& out);
  Step begin_value(char c, std::string& out);
  Step in_string(char c, std::string& out);
  Step in_escape(char c, std::string& out);
  Step in_hex(char c, std::string& out);
  Step in_number(char c, std::string& out);
  Step end_container(char c, std::string& out);
  Step pass(char c, At next, std::string& out);

  enum class Number : std::uint8_t { kMinus, kZero, kInt, kDot, kFraction, kE, kSign, kExponent };

  At at_ = At::kValue;
  Number number_ = Number::kMinus;
  bool in_key_ = false;
  std::string_view literal_;  // what is left of it
  std::uint32_t hex_ = 0;
  int hex_left_ = 0;
  int exponent_digits_ = 0;
  bool after_high_ = false;  // half of a surrogate pair is held back
  std::string open_;         // the brackets that are open
  std::string held_;
};

}  // namespace penstock::prompt
