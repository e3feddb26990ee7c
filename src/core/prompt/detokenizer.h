// Token bytes to text, a token at a time: never half a character, never a lost byte.
//
// Tokens may end in the middle of a character. Utf8Stream passes on what is complete and keeps at
// most three bytes; bytes that can't become a character turn into U+FFFD, one per maximal subpart,
// at once when that is certain and at finish() for a cut tail.
//
// Invariants: the concatenation of all outputs of push() and finish() equals Tokenizer::decode of
// all the ids; every single output is well-formed UTF-8.
// Errors: none; ids outside the vocabulary
// stand for nothing.
// Concurrency: one stream per choice, used by one thread at a time. Source:
// Unicode 15 section 3.9, table 3-7 and "U+FFFD substitution of maximal subparts".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/prompt/tokenizer.h"

namespace penstock {

class Utf8Stream {
 public:
  // Appends to `out` what `bytes` completes.
  void push(std::string_view bytes, std::string& out);
  // Appends U+FFFD when a character was cut off, and starts anew.
  void finish(std::string& out);
  // Bytes held back: 0..3.
  std::size_t pending() const { return held_size_; }

 private:
  std::size_t complete_held(std::string_view bytes, std::string& out);
  std::array<char, 4> held_{};
  std::size_t held_size_ = 0;
};

class IncrementalDetokenizer {
 public:
  // The tokenizer must outlive this object.
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer,
                                  Tokenizer::Special special = Tokenizer::Special::kSkip)
      : tokenizer_(&tokenizer), special_(special) {}

  // Appends the text that this token completes; may be nothing.
  void push(TokenId token, std::string& out);
  // Ends the text: appends what is left of a cut character as U+FFFD.
  void finish(std::string& out) { stream_.finish(out); }
  // Bytes of an unfinished character: 0..3.
  std::size_t pending() const { return stream_.pending(); }

 private:
  const Tokenizer* tokenizer_;
  Tokenizer::Special special_;
  Utf8Stream stream_;
};

}  // namespace penstock
