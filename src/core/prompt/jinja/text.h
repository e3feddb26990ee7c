// Text of a template's run, which remembers of each part where it came from.
//
// A chat template joins its own text with what people wrote. Only the first may name special
// tokens, so every operation on text keeps the origin of each byte: runs of equal origin, joined
// where they meet.
//
// Invariants: runs cover the bytes, none is empty, neighbours differ. Text is UTF-8 as far as its
// sources are. Units and shapes: positions are bytes unless a function says characters.
// Concurrency: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::jinja {

enum class Origin : std::uint8_t {
  kTemplate,  // the template's own, and what the caller vouches for
  kValue,     // anything else
};

class Text {
 public:
  struct Run {
    std::size_t end = 0;
    Origin origin = Origin::kValue;
  };

  Text() = default;
  Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) {
    if (!bytes_.empty()) runs_.push_back({bytes_.size(), origin});
  }

  void append(std::string_view bytes, Origin origin);
  void append(const Text& other);
  Text substr(std::size_t begin, std::size_t count = std::string::npos) const;

  const std::string& bytes() const { return bytes_; }
  std::string_view view() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  const std::vector<Run>& runs() const { return runs_; }
  // Whether no byte is of kValue.
  bool is_template() const;

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

// One character of UTF-8 at `at`: its code point and length; a byte that begins none stands alone.
struct Character {
  char32_t code = 0;
  std::size_t length = 1;
};
Character character_at(std::string_view text, std::size_t at);
// White space as Python's str.strip() and str.split() have it.
bool is_space(char32_t code);
std::size_t count_characters(std::string_view text);
// The byte at which the given character begins; the size behind the last.
std::size_t byte_of_character(std::string_view text, std::size_t character);

// Both ends without the characters of `set`, or without white space when it is null.
enum class Ends : std::uint8_t { kBoth, kLeft, kRight };
Text strip(const Text& text, Ends ends, const std::string* set);

enum class Case : std::uint8_t { kUpper, kLower };
Text with_case(const Text& text, Case to);

}  // namespace penstock::jinja
