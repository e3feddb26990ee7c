// Token ids and the spans a prompt is made of before tokenising.
//
// A prompt is a list of spans: special tokens that the chat template inserted, and plain text from
// people. Only a special span becomes a special-token id; text that merely spells one stays text.
// Concurrency: values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace penstock {

using TokenId = std::uint32_t;

enum class SpanKind : std::uint8_t {
  kPlain,    // text, tokenised as ordinary characters whatever it spells
  kSpecial,  // exactly one added token, named by its content
};

struct PromptSpan {
  SpanKind kind = SpanKind::kPlain;
  std::string text;  // UTF-8

  bool operator==(const PromptSpan&) const = default;
};

// An encoded prompt is shared read-only between the request, retries and the wire.
using TokenIds = std::shared_ptr<const std::vector<TokenId>>;

}  // namespace penstock
