// Reads a tokenizer.json into values: vocabulary, merges, added tokens and the pipeline.
//
// Everything in the file is either understood or an error that names its key; nothing is silently
// skipped but post_processor (special tokens come from the chat encoding) and notes such as
// version.
//
// Invariants: every entry of the vocabulary and of added_tokens has one id below
// Tokenizer::kTokenIdLimit, and no two different strings share one; merges refer to entries.
// Errors: kInvalidArgument for what is malformed, kUnsupported for what we don't do,
// kPayloadTooLarge.
// Concurrency: pure function.
// Source: docs of huggingface/tokenizers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/prompt/bpe.h"
#include "core/prompt/pretokenizer.h"
#include "core/prompt/tokenizer_added.h"

namespace penstock {

struct TokenizerFile {
  std::vector<std::string> text_bytes;  // by id: what text can spell; empty for others
  std::vector<std::string> decoded;     // by id: what decoding writes; added tokens included
  std::vector<Bpe::Merge> merges;
  std::vector<AddedToken> added;
  bool ignore_merges = false;
  bool normalizes_nfc = false;
  PreTokenizer pre_tokenizer;
};

Result<TokenizerFile> read_tokenizer_json(std::string_view json);

}  // namespace penstock
