// Tokenizer: text to token ids and back, for Hugging Face tokenizer.json files of the byte-level
// BPE family (DeepSeek, Llama-3, Qwen and our own).
//
// Text is normalised (NFC when the file asks for it), cut into pieces by the file's pre-tokenizers,
// and every piece is encoded on its own: a trie gives the longest token at each position, and a
// look at the merge ranks along the two edges tells whether byte-pair merging would have kept the
// border between two neighbours; a piece's encoding is the one sequence in which all borders hold.
// This is linear in the length of a piece, so a megabyte of one letter costs what a megabyte of
// prose does.
//
// Invariants: ids equal those of the native Hugging Face tokenizers (tools/tokenizer_reference).
// All 256 bytes are in the vocabulary, so every text has an encoding and decode(encode(text)) ==
// normalised text. The id of an added token comes out only of a special span or of
// encode_with_added_tokens, whatever a plain text spells.
// Units and shapes: ids are below
// kTokenIdLimit; text is UTF-8, and ill-formed bytes are read as U+FFFD, one per maximal subpart,
// as the reference does.
// Errors: from_json kInvalidArgument or kUnsupported, naming the key in
// `field`; encoding kInvalidArgument for an unknown special token, kPayloadTooLarge for text over
// kTextBytesMax, kUnsupported when the file's own regular expression runs into PCRE2's limits.
// Concurrency: immutable after loading; every const function may run on many threads at once.
// Source: docs of huggingface/tokenizers; "byte pair encoding is locally decidable", see bpe.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "domain/tokens.h"

namespace penstock {

class SpanCache;

class Tokenizer {
 public:
  // A pair of ids and a merge rank share one 64-bit word in the merge table.
  static constexpr TokenId kTokenIdLimit = 1U << 20;
  static constexpr std::size_t kJsonBytesMax = std::size_t{256} << 20;
  static constexpr std::size_t kTextBytesMax = std::size_t{1} << 30;

  // Builds a tokenizer from the text of a tokenizer.json. About a second for a vocabulary of 128K.
  static Result<std::unique_ptr<Tokenizer>> from_json(std::string_view tokenizer_json);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Appends the ids of plain text. Never yields an added token, whatever the text spells. On error
  // `out` is as it was.
  [[nodiscard]] Status encode(std::string_view text, std::vector<TokenId>& out) const;

  // Appends the ids of a prompt: a plain span as encode() does, each on its own; a special span as
  // exactly the added token of that content. Spans that `cache` (may be null) knows are not encoded
  // again. On error `out` is as it was.
  [[nodiscard]] Status encode(std::span<const PromptSpan> spans, SpanCache* cache,
                              std::vector<TokenId>& out) const;

  // Appends the ids the reference gives with add_special_tokens=false: added tokens are found in
  // the text by their spelling. For text we trust (parity tests, raw completions), never for what
  // people write.
  [[nodiscard]] Status encode_with_added_tokens(std::string_view text,
                                                std::vector<TokenId>& out) const;

  // Cuts trusted text, as of a chat template, into spans: the added tokens in it, and what stands
  // between. White space that a token strips is gone. Never for what people write.
  std::vector<PromptSpan> split_added(std::string_view text) const;

  enum class Special : std::uint8_t { kSkip, kKeep };
  // Returns the text of ids; ill-formed UTF-8 becomes U+FFFD, one per maximal subpart; ids outside
  // the vocabulary stand for nothing. See detokenizer.h for the incremental form.
  std::string decode(std::span<const TokenId> ids, Special special) const;

  // Returns the id of the added token with this content, else of the vocabulary entry that stands
  // for exactly these bytes (" the", not "\u0120the").
  std::optional<TokenId> token_id(std::string_view content) const;
  // Returns the bytes a token stands for, possibly a part of a character; empty for an unknown id.
  // The view lives as long as the tokenizer.
  std::string_view token_bytes(TokenId id) const;
  // Whether the file marks it special: not shown to people by default.
  bool is_special(TokenId id) const;
  // Whether it is an added token, special or not.
  bool is_added(TokenId id) const;
  // One more than the largest id. Ids in between may be unused.
  std::size_t vocab_size() const;
  // XXH3 of the file: tells vocabularies apart in caches, not against an adversary.
  std::uint64_t fingerprint() const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock
