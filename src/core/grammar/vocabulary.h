// TokenTrie and Vocabulary: the tokens of a model by the bytes they stand for.
//
// The trie lies in one array in the order of a walk: a node is followed by its subtree, and says
// where that ends, so walking is going forward and skipping. The tokens of a subtree are one range.
//
// Invariants: every byte is a token of its own, so that a text which can go on by a byte can go on
// by a token. Memory: about 12 bytes a node, three nodes a token. Errors: kUnsupported for a
// vocabulary without all bytes, kInvalidArgument over the limits. Concurrency: immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "domain/tokens.h"

namespace penstock::grammar {

struct TokenTrie {
  struct Node {
    std::uint32_t end;     // index after the subtree
    std::uint32_t tokens;  // into `tokens`: those that end here, then those of the subtree
    std::uint16_t depth;   // bytes from the root, which is 0
    std::uint8_t byte;
  };
  std::vector<Node> nodes;  // empty, or [0] is the root
  std::vector<TokenId> tokens;

  // `sorted` by bytes, none of them empty.
  static TokenTrie build(const std::vector<std::pair<std::string_view, TokenId>>& sorted);
  std::uint32_t own_tokens_end(std::uint32_t node) const {
    return node + 1 < nodes.size() ? nodes[node + 1].tokens
                                   : static_cast<std::uint32_t>(tokens.size());
  }
  std::uint32_t subtree_tokens_end(std::uint32_t node) const {
    return nodes[node].end < nodes.size() ? nodes[nodes[node].end].tokens
                                          : static_cast<std::uint32_t>(tokens.size());
  }
};

class Vocabulary {
 public:
  static constexpr std::uint32_t kTokenBytesMax = 128;  // a longer one is never allowed

  // `bytes[id]` is what the token stands for; empty for special and unused ids, which no text
  // spells.
  static Result<std::shared_ptr<const Vocabulary>> build(std::vector<std::string> bytes);

  std::size_t size() const { return bytes_.size(); }
  std::string_view bytes(TokenId id) const { return bytes_[id]; }
  const TokenTrie& trie() const { return trie_; }
  std::size_t longest() const { return longest_; }

 private:
  Vocabulary() = default;
  std::vector<std::string> bytes_;
  TokenTrie trie_;
  std::size_t longest_ = 0;
};

}  // namespace penstock::grammar
