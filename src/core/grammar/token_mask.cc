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

// The node of a string rule between the quotes, at the border of two characters.
std::uint32_t inside_string(const Grammar& grammar, const Grammar::Rule& rule) {
  return grammar.edge(grammar.nodes[rule.start], '"')->target;
}

}  // namespace

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
  std::vector<std::vector<TokenId>> by_count;
  walk(*grammar, scratch_, trie, [&](std::uint32_t n, const Reader& before, const Reader& after) {
    if (after.positions.empty()) {
      const std::uint32_t characters = before.positions[0].count;
      const std::uint16_t depth = trie.nodes[n].depth;
      for (std::uint32_t t = trie.nodes[n].tokens; t < trie.subtree_tokens_end(n); ++t) {
        const std::string_view bytes = vocabulary_->bytes(trie.tokens[t]);
        closers_.push_back({bytes.substr(depth), trie.tokens[t], characters});
      }
      return;
    }
    const std::uint32_t characters = after.positions[0].count;
    if (by_count.size() <= characters) by_count.resize(characters + 1);
    for (std::uint32_t t = trie.nodes[n].tokens; t < trie.own_tokens_end(n); ++t)
      by_count[characters].push_back(trie.tokens[t]);
  });
  std::ranges::sort(closers_, [](const Closer& a, const Closer& b) {
    return a.rest != b.rest ? a.rest < b.rest : a.token < b.token;
  });
  by_count.resize(kCharactersMax + 1);
  for (const auto& tokens : by_count) {
    inside_.push_back(inside_.empty() ? std::vector<std::uint64_t>(words(), 0) : inside_.back());
    for (const TokenId token : tokens)
      set_bit(inside_.back(), token);
  }
}

NodeMask MaskMaker::counted_string(std::uint32_t need, std::uint32_t left) const {
  NodeMask out;
  out.bits = inside_[left];
  std::vector<std::pair<std::string_view, TokenId>> rest;
  for (const Closer& closer : closers_) {
    if (closer.characters < need || closer.characters > left) continue;
    if (closer.rest.empty()) {
      set_bit(out.bits, closer.token);
    } else {
      rest.emplace_back(closer.rest, closer.token);
    }
  }
  out.rest = TokenTrie::build(rest);
  return out;
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
  const std::uint32_t need =
      !rule.counts || at.count >= rule.min ? 0 : std::min(rule.min - at.count, kCharactersMax);
  const std::uint32_t left = !rule.counts ? 0 : std::min(rule.max - at.count, kCharactersMax);
  if (rule.common != CommonRule::kNone) {
    const CommonKey key{rule.common, at.node - rule.start, need, left};
    const auto found = common_.find(key);
    if (found != common_.end()) return found->second;
    if (common_.size() >= kEntriesMax) common_.clear();
    const bool by_table =
        rule.common == CommonRule::kCountedString && at.node == inside_string(grammar, rule);
    return common_.emplace(key, by_table ? counted_string(need, left) : walk_node(grammar, at))
        .first->second;
  }
  if (known.entries() >= kEntriesMax) known = {};
  if (!rule.counts) {
    const auto found = known.plain_.find(at.node);
    if (found != known.plain_.end()) return found->second;
    return known.plain_.emplace(at.node, walk_node(grammar, at)).first->second;
  }
  const std::tuple key(at.node, need, left);
  const auto found = known.counted_.find(key);
  if (found != known.counted_.end()) return found->second;
  return known.counted_.emplace(key, walk_node(grammar, at)).first->second;
}

void MaskMaker::mask(Matcher& matcher, GrammarMasks& known, std::span<std::uint64_t> allowed) {
  ENSURE(allowed.size() == words());
  std::ranges::fill(allowed, 0);
  const Grammar& grammar = matcher.grammar();
  StackPool& pool = matcher.pool();
  for (const Position& at : matcher.reader().positions) {
    const NodeMask& node = node_mask(grammar, at, known);
    if (node.bits.empty()) {
      for (const TokenId token : node.few)
        set_bit(allowed, token);
    } else {
      for (std::size_t i = 0; i < allowed.size(); ++i)
        allowed[i] |= node.bits[i];
    }
    if (at.stack == 0 || node.rest.nodes.empty()) continue;
    const std::uint32_t mark = pool.size();
    const StackPool::Frame frame = pool[at.stack];
    stepper_.enter(grammar, pool, {frame.node, frame.count, frame.below}, levels_[0]);
    walk(grammar, pool, node.rest, [&](std::uint32_t n, const Reader&, const Reader&) {
      for (std::uint32_t t = node.rest.nodes[n].tokens; t < node.rest.own_tokens_end(n); ++t)
        set_bit(allowed, node.rest.tokens[t]);
    });
    pool.truncate(mark);
  }
}

}  // namespace penstock::grammar
