// Byte-pair encoding of one piece of text, in time linear in its length.
//
// Two ways to the same ids. Merging does what the definition says: of all neighbouring pairs with a
// merge rule, join the one of lowest rank, leftmost first, until none is left (a heap for long
// pieces). Matching is faster: a sequence of tokens is the encoding of a text exactly when for
// every two neighbours merging their joint bytes gives those two back. (While no merge has crossed
// a border, each side merges as it does alone, and whether a crossing pair comes first depends on
// the two tokens at it only.) So take the longest token at each position, test the border to the
// one before, try shorter tokens when it does not hold, and remember positions that lead nowhere: a
// prefix of the text has one encoding, so a position is tried with one left neighbour only.
//
// The border test undoes the merges along the touching edges from the last to the first. That order
// is known when a token's last merge ranks after those inside it; the few irregular tokens for
// which it does not (81 in Llama-3, none in DeepSeek-V3) are tested by merging. Nearly all of the
// time goes into cache misses, so what the test needs of a token lies together in 32 bytes,
// and a filter in the second-level cache answers most questions for a merge rule.
//
// Invariants: a token is reachable when merging its own bytes gives it back; only those are
// matched. Ids of added tokens are never produced, but for the 256 byte tokens.
// Units and shapes: a
// piece is shorter than 2^31 bytes; ranks are below kRankLimit.
// Errors: build returns
// kInvalidArgument or kPayloadTooLarge. Encoding has none.
// Concurrency: immutable after build;
// scratch memory belongs to the caller.
// Source: M. Berglund and B. van der Merwe, "Formalizing BPE
// Tokenization" (2023), for locality.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/prompt/bpe_trie.h"
#include "domain/tokens.h"

namespace penstock {

// Merge rules by pair, one 64-bit word each, open addressing at half load.
class MergeTable {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  // Makes room for `count` rules.
  explicit MergeTable(std::size_t count = 0);

  // Adds a rule; a later one for the same pair replaces the earlier.
  void insert(TokenId left, TokenId right, std::uint32_t rank);
  // Returns the rank of the pair's rule, or kNone.
  std::uint32_t rank(TokenId left, TokenId right) const {
    const std::uint64_t pair = std::uint64_t{left} << 20 | right;
    const std::uint64_t hash = hash_of(pair);
    const std::uint64_t bit = hash & filter_mask_;
    if ((filter_[bit / 64] >> (bit % 64) & 1) == 0) return kNone;
    for (std::size_t i = hash >> shift_;; i = (i + 1) & mask_) {
      const std::uint64_t word = words_[i];
      if (word >> 24 == pair) return static_cast<std::uint32_t>(word & 0xFFFFFF);
      if (word == kEmpty) return kNone;
    }
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  static std::uint64_t hash_of(std::uint64_t pair) {
    const std::uint64_t mixed = pair * 0x9E3779B97F4A7C15;
    return mixed ^ mixed >> 29;
  }
  int shift_ = 0;
  std::size_t mask_ = 0;
  std::uint64_t filter_mask_ = 0;
  std::vector<std::uint64_t> filter_;  // eight bits a rule, one of them set
  std::vector<std::uint64_t> words_;   // left 20 bits, right 20 bits, rank 24 bits
};

class Bpe {
 public:
  static constexpr std::uint32_t kRankLimit = (1U << 24) - 1;

  struct Merge {
    TokenId left = 0;
    TokenId right = 0;
    TokenId product = 0;
  };
  struct Vocabulary {
    std::vector<std::string_view> bytes;  // by id; empty: not an entry that text can produce
    std::vector<bool> added;              // by id: is an added token
    std::vector<Merge> merges;            // by rank
    bool ignore_merges = false;           // a piece that is an entry becomes it, reachable or not
  };
  // Memory that encoding reuses from piece to piece.
  struct Scratch {
    struct Node {
      TokenId id;
      std::uint32_t rank;  // of the pair with the next node
      std::uint32_t previous, next;
    };
    std::vector<std::uint64_t> dead;
    std::vector<TokenId> leaves;
    std::vector<Node> nodes;
    std::vector<std::uint64_t> heap;
  };

  // The views need not outlive the call.
  static Result<Bpe> build(const Vocabulary& vocabulary);

  // Appends the ids of a piece, which is not empty.
  void encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const;
  // The same by merging, as the definition says: the model that encode() is tested against.
  void encode_by_merging(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const;
  // Returns the id of the entry with exactly these bytes, or MergeTable::kNone.
  TokenId find(std::string_view bytes) const;
  // How many tokens are tested by merging.
  std::size_t irregular_tokens() const { return irregular_tokens_; }

 private:
  static constexpr std::uint32_t kNone = MergeTable::kNone;
  static constexpr std::uint32_t kUnreachable = 1U << 30;  // flag on trie values

  static constexpr std::int32_t kByte = -1;     // rank of a token that no merge made
  static constexpr std::int32_t kUnknown = -2;  // not reachable
  static constexpr std::int32_t kIrregular = INT32_MAX;

  // How merging made a token: from left and right by the rule of this rank.
  struct Origin {
    TokenId left = kNone;
    TokenId right = kNone;
    std::int32_t rank = kUnknown;
  };
  // What borders ask of a token: as the one on the left, and as the one on the right.
  struct alignas(32) Edges {
    TokenId right_child = kNone;
    TokenId left_child = kNone;
    std::int32_t rank = kByte;             // of the merge that made it
    std::uint32_t left_rank_min = kNone;   // of all rules with this token on the left
    std::uint32_t right_rank_min = kNone;  // of all rules with this token on the right
    std::uint32_t length = 0;
    TokenId shorter = kNone;  // longest reachable proper prefix
  };
  struct Longest {
    TokenId token = kNone;  // longest reachable token
    TokenId whole = kNone;  // entry that is all of the text, reachable or not
  };

  void find_origins(const Vocabulary& vocabulary);
  void make_edges(const Vocabulary& vocabulary);
  Status build_trie(const Vocabulary& vocabulary);
  Longest longest(std::string_view text) const;
  bool border_holds(TokenId left, TokenId right, Scratch& scratch) const;
  bool border_holds_by_merging(TokenId left, TokenId right, Scratch& scratch) const;
  void match(std::string_view piece, TokenId first, Scratch& scratch,
             std::vector<TokenId>& out) const;
  void append_leaves(TokenId token, std::vector<TokenId>& leaves) const;
  // Merges the leaves into scratch.nodes and returns the rank of the last merge done, or kNone.
  std::uint32_t merge(std::span<const TokenId> leaves, Scratch& scratch) const;
  std::uint32_t merge_bytes(std::string_view piece, Scratch& scratch) const;
  void merge_by_scan(Scratch& scratch, std::uint32_t& last) const;
  void merge_by_heap(Scratch& scratch, std::uint32_t& last) const;

  bool ignore_merges_ = false;
  std::size_t irregular_tokens_ = 0;
  std::array<TokenId, 256> byte_token_{};
  std::vector<TokenId> products_;  // by rank
  MergeTable pairs_;
  ByteTrie trie_;
  std::vector<Origin> origins_;  // by id
  std::vector<Edges> edges_;     // by id
};

}  // namespace penstock
