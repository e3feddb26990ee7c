#include "core/prompt/bpe.h"

#include <map>
#include <string>

#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

// A vocabulary over few letters with random rules; with `any_order` their ranks are shuffled, so
// that tokens come out irregular or unreachable.
struct RandomVocabulary {
  std::vector<std::string> tokens;
  Bpe::Vocabulary vocabulary;

  RandomVocabulary(Rng& rng, bool any_order) {
    std::map<std::string, TokenId> ids;
    for (int byte = 0; byte < 256; ++byte) {
      tokens.emplace_back(1, static_cast<char>(byte));
      ids[tokens.back()] = static_cast<TokenId>(byte);
    }
    const std::uint64_t letters = 1 + rng.below(3);
    std::vector<TokenId> parts;
    for (std::uint64_t i = 0; i < letters; ++i)
      parts.push_back(static_cast<TokenId>('a' + i));
    for (std::uint64_t i = 2 + rng.below(30); i > 0; --i) {
      const TokenId left = parts[rng.below(parts.size())];
      const TokenId right = parts[rng.below(parts.size())];
      const std::string product = tokens[left] + tokens[right];
      if (product.size() > 12) continue;
      const auto [it, is_new] = ids.try_emplace(product, static_cast<TokenId>(tokens.size()));
      if (is_new) {
        tokens.push_back(product);
        parts.push_back(it->second);
      }
      vocabulary.merges.push_back({left, right, it->second});
    }
    if (any_order) {
      auto& merges = vocabulary.merges;
      for (std::size_t i = merges.size(); i > 1; --i)
        std::swap(merges[i - 1], merges[rng.below(i)]);
    }
    vocabulary.bytes.assign(tokens.begin(), tokens.end());
    vocabulary.added.resize(tokens.size());
    vocabulary.ignore_merges = rng.below(4) == 0;
  }
};

// The definition, word for word: the lowest rank, leftmost, until there is none.
std::vector<TokenId> by_definition(const RandomVocabulary& random, std::string_view text) {
  std::map<std::pair<TokenId, TokenId>, std::size_t> ranks;
  for (std::size_t rank = 0; rank < random.vocabulary.merges.size(); ++rank) {
    const Bpe::Merge& rule = random.vocabulary.merges[rank];
    ranks[{rule.left, rule.right}] = rank;
  }
  std::vector<TokenId> ids;
  for (std::size_t id = 0; random.vocabulary.ignore_merges && id < random.tokens.size(); ++id) {
    if (random.tokens[id] == text) return {static_cast<TokenId>(id)};
  }
  for (const char c : text)
    ids.push_back(static_cast<unsigned char>(c));
  while (true) {
    std::size_t best = ranks.size() + random.vocabulary.merges.size();
    std::size_t at = ids.size();
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        at = i;
      }
    }
    if (at == ids.size()) return ids;
    ids[at] = random.vocabulary.merges[best].product;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST_CASE("bpe: matching, merging and the definition agree on random vocabularies") {
  Rng rng(2024);
  std::size_t irregular = 0;
  for (int round = 0; round < 2000; ++round) {
    const RandomVocabulary random(rng, round % 2 == 1);
    const auto bpe = Bpe::build(random.vocabulary);
    REQUIRE(bpe);
    irregular += bpe->irregular_tokens();
    Bpe::Scratch scratch;
    for (int text_round = 0; text_round < 8; ++text_round) {
      std::string text;
      for (std::uint64_t i = 1 + rng.below(text_round == 7 ? 90 : 20); i > 0; --i) {
        text.push_back(static_cast<char>('a' + rng.below(3)));
      }
      CAPTURE(round);
      CAPTURE(text);
      std::vector<TokenId> matched;
      std::vector<TokenId> merged;
      bpe->encode(text, scratch, matched);
      bpe->encode_by_merging(text, scratch, merged);
      const std::vector<TokenId> expected = by_definition(random, text);
      REQUIRE(merged == expected);
      REQUIRE(matched == expected);
    }
  }
  // The shuffled half must have reached the slow border test.
  CHECK(irregular > 0);
}

TEST_CASE("bpe: a later rule for a pair replaces the earlier") {
  MergeTable table(4);
  table.insert(1, 2, 7);
  table.insert(2, 1, 8);
  table.insert(1, 2, 9);
  CHECK(table.rank(1, 2) == 9);
  CHECK(table.rank(2, 1) == 8);
  CHECK(table.rank(1, 1) == MergeTable::kNone);
  CHECK(MergeTable().rank(0, 0) == MergeTable::kNone);
}

TEST_CASE("trie: finds every key and its prefixes, and nothing else") {
  Rng rng(5);
  for (int round = 0; round < 200; ++round) {
    std::map<std::string, std::uint32_t> model;
    std::vector<std::string> keys;
    for (std::uint64_t i = 1 + rng.below(60); i > 0; --i) {
      std::string key;
      for (std::uint64_t k = 1 + rng.below(6); k > 0; --k) {
        key.push_back(static_cast<char>(rng.below(4) == 0 ? rng.below(256) : 'a' + rng.below(2)));
      }
      if (model.try_emplace(key, static_cast<std::uint32_t>(model.size())).second)
        keys.push_back(key);
    }
    std::vector<ByteTrie::Item> items;
    for (const std::string& key : keys)
      items.push_back({key, model[key]});
    const auto trie = ByteTrie::build(items);
    REQUIRE(trie);
    for (int probe = 0; probe < 100; ++probe) {
      std::string text = keys[rng.below(keys.size())].substr(rng.below(2));
      text.push_back(static_cast<char>(rng.below(256)));
      std::vector<std::pair<std::size_t, std::uint32_t>> found;
      trie->for_each_prefix(
          text, [&](std::size_t end, std::uint32_t value) { found.emplace_back(end, value); });
      std::vector<std::pair<std::size_t, std::uint32_t>> expected;
      for (std::size_t end = 1; end <= text.size(); ++end) {
        if (const auto it = model.find(text.substr(0, end)); it != model.end()) {
          expected.emplace_back(end, it->second);
        }
      }
      REQUIRE(found == expected);
    }
    CHECK(trie->find("") == ByteTrie::kNone);
  }
}

}  // namespace
}  // namespace penstock
