// Hand-written scanners for the regular expressions that real tokenizer files carry.
//
// They are recognised by the exact pattern text; anything else goes through PCRE2
// (pretokenizer_regex.h), which is 5 to 20 times slower. A property test holds both against each
// other.
//
// Invariants: the pieces are those of an isolating split by the pattern, in order, none empty, and
// their concatenation is the text.
// Units and shapes: text is well-formed UTF-8.
// Errors: none.
// Concurrency: pure functions over immutable tables.
// Source: the pre_tokenizer sections of the DeepSeek-V3, Llama-3, Qwen-3 and GPT-2 files.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/prompt/pretokenizer.h"

namespace penstock {

enum class ScannerKind : std::uint8_t {
  kNumberEach,     // \p{N}
  kNumberTriples,  // \p{N}{1,3}
  kDeepseekCjk,    // Chinese and kana runs of DeepSeek-V3
  kDeepseekText,   // the third pattern of DeepSeek-V3
  kDeepseekAll,    // its three patterns at once
  kLlama3,
  kQwen,
  kDeepseekCoder,  // Qwen's with " ?\p{L}+" for words
  kNumberedCoder,  // kNumberEach and then that, at once: our own models
  kGpt2,           // the one built into ByteLevel
};

// The pattern of GPT-2 that ByteLevel uses with use_regex.
extern const std::string_view kGpt2Pattern;

// Returns the scanner for an isolating split by this pattern, if there is one.
std::optional<ScannerKind> known_scanner(std::string_view pattern);
// Returns the text of the pattern, for tests; empty for those of several patterns.
std::string_view pattern_of(ScannerKind kind);

// Cuts the text and hands every piece to the sink.
void scan(ScannerKind kind, std::string_view text, PieceSink sink);

}  // namespace penstock
