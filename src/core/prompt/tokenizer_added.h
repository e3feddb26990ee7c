// Added tokens: finding them in text by their spelling, as the reference does.
//
// Two groups. Those with normalized=false are looked for in the raw text first; the others, with
// their contents normalised, in the normalised text between. In each pass the leftmost match counts
// and of several there the longest.
//
// Invariants: the parts that find() reports cover the text but for white space that an lstrip or
// rstrip token swallowed.
// Errors: build returns kPayloadTooLarge for absurd amounts.
// Concurrency: immutable after build.
// Source: docs of huggingface/tokenizers, AddedToken.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/prompt/bpe_trie.h"
#include "domain/tokens.h"

namespace penstock {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

class AddedTokenFinder {
 public:
  static Result<AddedTokenFinder> build(std::vector<AddedToken> tokens);

  // Calls on_text(part) and on_token(id) in the order of the text.
  template <typename OnText, typename OnToken>
  void find(std::string_view text, OnText on_text, OnToken on_token) const {
    std::size_t covered = 0;
    while (const Found found = next(text, covered)) {
      if (found.begin > covered) on_text(text.substr(covered, found.begin - covered));
      on_token(found.token->id);
      covered = found.end;
    }
    if (covered < text.size()) on_text(text.substr(covered));
  }

 private:
  struct Found {
    const AddedToken* token = nullptr;
    std::size_t begin = 0;  // white space to be stripped included
    std::size_t end = 0;
    explicit operator bool() const { return token != nullptr; }
  };
  Found next(std::string_view text, std::size_t covered) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;  // content -> index in tokens_
  std::array<bool, 256> starts_{};
};

}  // namespace penstock
