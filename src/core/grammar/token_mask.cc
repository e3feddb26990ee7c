#include "core/grammar/token_mask.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/grammar/common_rules.h"

namespace penstock::grammar {
namespace {

// More tokens than this are kept as bits.
constexpr std::size_t kFewMax = 256;
// One more than any token's bytes, so its characters: larger bounds are all alike.
constexpr std::uint32_t kCharactersMax = Vocabulary::kTokenBytesMax + 1;

void set_bit(std::span<std::uint64_t> bits, TokenId token) {
  bits[token / 64] |= std::uint64_t{1} << (token % 64);
}

// A grammar that is one of the shared rules, to look at its masks before any request does.
std::shared_ptr<const Grammar> grammar_of(void (*fill)(CommonRules&, GrammarBuilder::State,
                                                       GrammarBuilder::State)) {
  GrammarBuilder builder({});
  const auto root = builder.rule("root");
  CommonRules rules(builder, Whitespace::kLimited);
  fill(rules, builder.start(root), builder.end(root));
  auto grammar = builder.build();
  ENSURE(grammar.has_value());
  return *grammar;
}

struct BoundsLeft {
  std::uint32_t need;
  std::uint32_t left;
};
// What is still to be counted; larger numbers than any token has characters are all alike.
BoundsLeft bounds_left(const Grammar::Rule& rule, std::uint32_t count) {
  if (!rule.counts) return {0, 0};
  return {count >= rule.min ? 0 : std::min(rule.min - count, kCharactersMax),
          std::min(rule.max - count, kCharactersMax)};
}

// The node of a string rule between the quotes, at the border of two characters.
std::uint32_t inside_string(const Grammar& grammar, const Grammar::Rule& rule) {
  return grammar.edge(grammar.nodes[rule.start], '"')->target;
}

}  // namespace

std::size_t NodeMask::bytes() const {
  constexpr std::size_t kMapEntry = 64;  // its links, its key, what the allocator adds
  return sizeof(NodeMask) + kMapEntry + few.capacity() * sizeof(few[0]) +
         bits.capacity() * sizeof(bits[0]) + rest.nodes.capacity() * sizeof(rest.nodes[0]) +
         rest.tokens.capacity() * sizeof(rest.tokens[0]);
}

MaskMaker::MaskMaker(std::shared_ptr<const Vocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)), levels_(vocabulary_->longest() + 1) {
  learn_strings();
  GrammarMasks none;
  const auto learn = [&](const Grammar& grammar) {
    for (std::uint32_t n = 0; n < grammar.nodes.size(); ++n) {
      const Grammar::Node& node = grammar.nodes[n];
      const Grammar::Rule& rule = grammar.rules[node.rule];
      if (rule.common == CommonRule::kNone || node.edges == node.edges_end) continue;
      node_mask(grammar, {n, 0, 0}, none);
    }
  };
  learn(*grammar_of([](CommonRules& r, auto from, auto to) { r.string(from, to); }));
  learn(*grammar_of([](CommonRules& r, auto from, auto to) { r.number(from, to); }));
  learn(*grammar_of([](CommonRules& r, auto from, auto to) { r.integer(from, to); }));
}

template <typename Visit>
void MaskMaker::walk(const Grammar& grammar, StackPool& pool, const TokenTrie& trie, Visit visit) {
  for (std::uint32_t n = 1; n < trie.nodes.size();) {
    const TokenTrie::Node& node = trie.nodes[n];
    const Reader& before = levels_[node.depth - 1U];
    Reader& after = levels_[node.depth];
    if (!stepper_.step(grammar, pool, before, node.byte, after)) {
      n = node.end;
      continue;
    }
    visit(n, before, after);
    n = after.positions.empty() ? node.end : n + 1;
  }
}

// Everything about strings that count: tokens by the number of characters they hold.
void MaskMaker::learn_strings() {
  const auto grammar =
      grammar_of([](CommonRules& r, auto from, auto to) { r.string(from, 0, kUnbounded - 1, to); });
  const auto rule =
      std::ranges::find(grammar->rules, CommonRule::kCountedString, &Grammar::Rule::common);
  const TokenTrie& trie = vocabulary_->trie();
  levels_[0].positions = {{inside_string(*grammar, *rule), 0, 0}};
  std::vector<std::vector<TokenId>> by_count(kCharactersMax + 1);
  std::vector<std::pair<std::string_view, TokenId>> rest;
  characters_.assign(vocabulary_->size(), 0);
  walk(*grammar, scratch_, trie, [&](std::uint32_t n, const Reader& before, const Reader& after) {
    const std::uint32_t own_end = trie.own_tokens_end(n);
    if (!after.positions.empty()) {
      auto& tokens = by_count[after.positions[0].count];
      tokens.insert(tokens.end(), trie.tokens.begin() + trie.nodes[n].tokens,
                    trie.tokens.begin() + own_end);
      return;
    }
    for (std::uint32_t t = trie.nodes[n].tokens; t < trie.subtree_tokens_end(n); ++t) {
      const TokenId token = trie.tokens[t];
      characters_[token] = static_cast<std::uint8_t>(before.positions[0].count);
      if (t < own_end) {
        closers_.push_back(token);
      } else {
        rest.emplace_back(vocabulary_->bytes(token).substr(trie.nodes[n].depth), token);
      }
    }
  });
  std::ranges::sort(rest);
  closer_rest_ = TokenTrie::build(rest);
  for (const auto& tokens : by_count) {
    inside_.push_back(inside_.empty() ? std::vector<std::uint64_t>(words(), 0) : inside_.back());
    for (const TokenId token : tokens)
      set_bit(inside_.back(), token);
  }
}

template <typename Fits>
void MaskMaker::mask_rest(Matcher& matcher, Position at, const TokenTrie& rest,
                          std::span<std::uint64_t> allowed, Fits fits) {
  if (at.stack == 0 || rest.tokens.empty()) return;
  StackPool& pool = matcher.pool();
  const std::uint32_t mark = pool.size();
  const StackPool::Frame frame = pool[at.stack];
  stepper_.enter(matcher.grammar(), pool, {frame.node, frame.count, frame.below}, levels_[0]);
  walk(matcher.grammar(), pool, rest, [&](std::uint32_t n, const Reader&, const Reader&) {
    for (std::uint32_t t = rest.nodes[n].tokens; t < rest.own_tokens_end(n); ++t) {
      if (fits(rest.tokens[t])) set_bit(allowed, rest.tokens[t]);
    }
  });
  pool.truncate(mark);
}

void MaskMaker::mask_counted_string(Matcher& matcher, Position at,
                                    std::span<std::uint64_t> allowed) {
  const Grammar& grammar = matcher.grammar();
  const auto bounds = bounds_left(grammar.rules[grammar.nodes[at.node].rule], at.count);
  for (std::size_t i = 0; i < allowed.size(); ++i)
    allowed[i] |= inside_[bounds.left][i];
  const auto fits = [&](TokenId token) {
    return characters_[token] >= bounds.need && characters_[token] <= bounds.left;
  };
  for (const TokenId token : closers_) {
    if (fits(token)) set_bit(allowed, token);
  }
  mask_rest(matcher, at, closer_rest_, allowed, fits);
}

NodeMask MaskMaker::walk_node(const Grammar& grammar, Position at) {
  NodeMask out;
  const TokenTrie& trie = vocabulary_->trie();
  std::vector<std::pair<std::string_view, TokenId>> rest;
  at.stack = 0;
  levels_[0].positions = {at};
  const std::uint32_t mark = scratch_.size();
  walk(grammar, scratch_, trie, [&](std::uint32_t n, const Reader&, const Reader& after) {
    const std::uint32_t own_end = trie.own_tokens_end(n);
    out.few.insert(out.few.end(), trie.tokens.begin() + trie.nodes[n].tokens,
                   trie.tokens.begin() + own_end);
    if (!after.complete) return;
    const std::uint16_t depth = trie.nodes[n].depth;
    for (std::uint32_t t = own_end; t < trie.subtree_tokens_end(n); ++t)
      rest.emplace_back(vocabulary_->bytes(trie.tokens[t]).substr(depth), trie.tokens[t]);
  });
  scratch_.truncate(mark);
  const Grammar::Node& node = grammar.nodes[at.node];
  for (std::uint32_t e = node.edges; e < node.edges_end; ++e) {
    for (std::uint64_t s = std::max(grammar.edges[e].first, kTokenSymbol);
         s <= grammar.edges[e].last && s - kTokenSymbol < vocabulary_->size(); ++s)
      out.few.push_back(static_cast<TokenId>(s - kTokenSymbol));
  }
  if (!rest.empty()) {
    std::ranges::sort(rest);
    rest.erase(std::ranges::unique(rest).begin(), rest.end());
    out.rest = TokenTrie::build(rest);
    out.rest.nodes.shrink_to_fit();
    out.rest.tokens.shrink_to_fit();
  }
  if (out.few.size() > kFewMax) {
    out.bits.assign(words(), 0);
    for (const TokenId token : out.few)
      set_bit(out.bits, token);
    out.few = {};
  }
  return out;
}

const NodeMask& MaskMaker::node_mask(const Grammar& grammar, Position at, GrammarMasks& known) {
  const std::uint32_t r = grammar.nodes[at.node].rule;
  const Grammar::Rule& rule = grammar.rules[r];
  const auto [need, left] = bounds_left(rule, at.count);
  // Found in `masks`, or added to it; `clear` makes room.
  const auto look_up = [&](auto& masks, const auto& key, std::size_t& bytes, std::size_t bytes_max,
                           auto clear) -> const NodeMask& {
    const auto found = masks.find(key);
    if (found != masks.end()) return found->second;
    NodeMask mask = walk_node(grammar, at);
    const std::size_t more = mask.bytes();
    if (bytes + more > bytes_max) clear();
    bytes += more;
    return masks.emplace(key, std::move(mask)).first->second;
  };
  if (rule.common != CommonRule::kNone) {
    const CommonKey key{rule.common, at.node - rule.start, need, left};
    return look_up(common_, key, common_bytes_, kCommonBytesMax, [&] {
      common_.clear();
      common_bytes_ = 0;
    });
  }
  const std::size_t bytes_max = kBytesMax - std::min(kBytesMax, grammar.bytes());
  const auto clear = [&] { known = {}; };
  if (rule.counts) {
    return look_up(known.counted_, std::tuple(at.node, need, left), known.bytes_, bytes_max, clear);
  }
  return look_up(known.plain_, at.node, known.bytes_, bytes_max, clear);
}

void MaskMaker::mask(Matcher& matcher, GrammarMasks& known, std::span<std::uint64_t> allowed) {
  ENSURE(allowed.size() == words());
  std::ranges::fill(allowed, 0);
  const Grammar& grammar = matcher.grammar();
  for (const Position& at : matcher.reader().positions) {
    const Grammar::Rule& rule = grammar.rules[grammar.nodes[at.node].rule];
    if (rule.common == CommonRule::kCountedString && at.node == inside_string(grammar, rule)) {
      mask_counted_string(matcher, at, allowed);
      continue;
    }
    const NodeMask& node = node_mask(grammar, at, known);
    for (const TokenId token : node.few)
      set_bit(allowed, token);
    for (std::size_t i = 0; i < node.bits.size(); ++i)
      allowed[i] |= node.bits[i];
    mask_rest(matcher, at, node.rest, allowed, [](TokenId) { return true; });
  }
}

}  // namespace penstock::grammar
