// MaskMaker: which tokens may come next, as bits over a vocabulary.
//
// What a position allows splits in two. Tokens that stay inside the position's rule, or end with
// it, depend on the node alone: they are found once by walking the trie, and kept. Tokens that go
// on after the rule's end depend on the stack: their remainders are kept as a small trie of their
// own, and walked anew with the stack of the moment, which a few bytes decide. Rules that all
// grammars share (strings, numbers) are kept with the vocabulary; a string that counts its
// characters is looked up from how many characters each token has.
//
// Invariants: the mask is exact: a token is allowed exactly if Matcher::advance() takes its bytes.
// It is empty only if nothing but the end can come. Memory: a bit per token and position with many
// tokens, 4 bytes a token for others; kBytesMax bounds what is kept. Concurrency: one thread at a
// time; the vocabulary is shared. Source: docs/design/0011-structured-output.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/grammar/matcher.h"
#include "core/grammar/vocabulary.h"

namespace penstock::grammar {

// What is known of the masks of one node.
struct NodeMask {
  std::vector<TokenId> few;         // allowed tokens, or ...
  std::vector<std::uint64_t> bits;  // ... when there are many
  TokenTrie rest;                   // of tokens that go on after the rule's end: what is then left
  std::size_t bytes() const;        // of memory, its place in a map included
};

// Masks of one grammar's own nodes, as they become known; made by a MaskMaker for its vocabulary.
class GrammarMasks {
 public:
  std::size_t bytes() const { return bytes_; }

 private:
  friend class MaskMaker;
  std::size_t bytes_ = 0;
  std::unordered_map<std::uint32_t, NodeMask> plain_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, NodeMask> counted_;
};

class MaskMaker {
 public:
  // Of one grammar and its masks; of the masks that all grammars share, which take some tens of MiB
  // for 128K tokens. Beyond, masks start anew.
  static constexpr std::size_t kBytesMax = std::size_t{32} << 20;
  static constexpr std::size_t kCommonBytesMax = std::size_t{128} << 20;

  // Looks at the shared rules at once: some milliseconds for 128K tokens.
  explicit MaskMaker(std::shared_ptr<const Vocabulary> vocabulary);

  std::size_t words() const { return (vocabulary_->size() + 63) / 64; }
  // Sets the bits of the tokens that may come next, clears all others. Ends of sequence are the
  // caller's: they may come when matcher.complete(). Precondition: allowed.size() == words().
  void mask(Matcher& matcher, GrammarMasks& known, std::span<std::uint64_t> allowed);
  const Vocabulary& vocabulary() const { return *vocabulary_; }

 private:
  struct CommonKey {
    CommonRule rule;
    std::uint32_t node;  // offset in the rule
    std::uint32_t need;
    std::uint32_t left;
    auto operator<=>(const CommonKey&) const = default;
  };
  const NodeMask& node_mask(const Grammar& grammar, Position at, GrammarMasks& known);
  NodeMask walk_node(const Grammar& grammar, Position at);
  void learn_strings();
  // The same as node_mask() and its rest for the inside of a string that counts, by lookup.
  void mask_counted_string(Matcher& matcher, Position at, std::span<std::uint64_t> allowed);
  // Tokens of `rest` that can follow the end of the rule at `at`; `fits` has the last word.
  template <typename Fits>
  void mask_rest(Matcher& matcher, Position at, const TokenTrie& rest,
                 std::span<std::uint64_t> allowed, Fits fits);
  // Calls visit(trie node, reader before, reader after) for each node that the grammar reads.
  template <typename Visit>
  void walk(const Grammar& grammar, StackPool& pool, const TokenTrie& trie, Visit visit);

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::map<CommonKey, NodeMask> common_;
  std::size_t common_bytes_ = 0;
  std::vector<std::vector<std::uint64_t>> inside_;  // [characters]: tokens of at most so many
  std::vector<TokenId> closers_;                    // end with a string's quote
  TokenTrie closer_rest_;                           // of tokens with more behind the quote
  std::vector<std::uint8_t> characters_;            // [token]: before the quote of one of those
  std::vector<Reader> levels_;                      // of a walk, by depth
  Stepper stepper_;
  StackPool scratch_;
};

}  // namespace penstock::grammar
