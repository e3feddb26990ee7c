#include "core/kvcache/chain_cache.h"

#include <array>

#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock::kvcache {
namespace {

constexpr std::array<std::uint8_t, 32> kSecret = {7};
const KvRootFields kFields{"weights", "engine", "bf16", "", "tenant:a", 64};

std::vector<TokenId> random_tokens(Rng& rng, std::size_t count) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens)
    token = static_cast<TokenId>(rng.below(100));
  return tokens;
}

KvMedia media_at(std::uint64_t offset, std::uint8_t content) {
  KvMedia media{.token_offset = offset};
  media.content_hash.fill(content);
  return media;
}

struct Prompt {
  std::vector<TokenId> tokens;
  std::vector<KvMedia> media;
};

// A prompt that goes on from an earlier one, or parts from it somewhere, in tokens or media.
Prompt next_prompt(Rng& rng, const std::vector<Prompt>& before, std::size_t block) {
  Prompt prompt;
  if (!before.empty()) prompt = before[rng.below(before.size())];
  if (rng.below(2) == 0) {
    const auto cut = rng.below(prompt.tokens.size() + 1);
    prompt.tokens.resize(cut);
    std::erase_if(prompt.media, [&](const KvMedia& m) { return m.token_offset >= cut; });
  }
  const auto start = prompt.tokens.size();
  const auto more = random_tokens(rng, rng.below(12 * block));
  prompt.tokens.insert(prompt.tokens.end(), more.begin(), more.end());
  if (!more.empty() && rng.below(3) == 0)
    prompt.media.push_back(media_at(start + rng.below(more.size()), 1));
  if (!prompt.media.empty() && rng.below(4) == 0)
    prompt.media[rng.below(prompt.media.size())].content_hash.fill(
        static_cast<std::uint8_t>(rng.below(3)));
  return prompt;
}

}  // namespace

TEST_CASE("chains from the cache equal plain hashing, within the memory") {
  KeyChain hasher(kSecret);
  KvRootFields other = kFields;
  other.scope = "tenant:b";
  const BlockKey roots[] = {*hasher.root(kFields), *hasher.root(other)};
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{4000}, std::size_t{1} << 20}) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      Rng rng(seed);
      ChainCache cache(bytes);
      std::vector<Prompt> prompts;
      for (int round = 0; round < 150; ++round) {
        prompts.push_back(next_prompt(rng, prompts, 8));
        const Prompt& p = prompts.back();
        const BlockKey& root = roots[rng.below(2)];
        CHECK(cache.chain(hasher, root, 8, p.tokens, p.media) ==
              hasher.chain(root, 8, p.tokens, p.media));
        CHECK(cache.bytes() <= bytes);
      }
      if (bytes > 4000) CHECK(2 * cache.known_blocks() > cache.hashed_blocks());
    }
  }
}

TEST_CASE(
    "a conversation's next turn hashes only what is new, also beside others of its system prompt") {
  KeyChain hasher(kSecret);
  ChainCache cache(1 << 24);
  const BlockKey root = *hasher.root(kFields);
  Rng rng(5);
  const auto system = random_tokens(rng, 64 * 40 + 17);
  std::vector<std::vector<TokenId>> conversations(30, system);
  std::uint64_t blocks = 40;
  for (int turn = 0; turn < 5; ++turn) {
    for (auto& tokens : conversations) {
      const auto before = tokens.size() / 64;
      const auto more = random_tokens(rng, 300);
      tokens.insert(tokens.end(), more.begin(), more.end());
      blocks += tokens.size() / 64 - before;
      cache.chain(hasher, root, 64, tokens);
    }
  }
  CHECK(cache.hashed_blocks() == blocks);
  CHECK(cache.bytes() < blocks * 272 + 151 * 300);
}

TEST_CASE("new keys are told in batches while the chain goes on, those known are not") {
  KeyChain hasher(kSecret);
  const BlockKey root = *hasher.root(kFields);
  Rng rng(3);
  const auto tokens = random_tokens(rng, 4 * (5 * kKeysTold + 7));
  std::vector<BlockKey> told;
  const KeysTold tell = [&](std::span<const BlockKey> keys) {
    CHECK(keys.size() == kKeysTold);
    told.insert(told.end(), keys.begin(), keys.end());
  };
  const auto all = hasher.chain(root, 4, tokens, {}, tell);
  CHECK(told == std::vector(all.begin(), all.begin() + 5 * kKeysTold));
  ChainCache cache(std::size_t{1} << 20);
  told.clear();
  CHECK(
      cache.chain(hasher, root, 4, std::span(tokens).first(4 * (kKeysTold + 3)), {}, tell).size() ==
      kKeysTold + 3);
  CHECK(told == std::vector(all.begin(), all.begin() + kKeysTold));
  told.clear();
  CHECK(cache.chain(hasher, root, 4, tokens, {}, tell) == all);
  CHECK(told == std::vector(all.begin() + kKeysTold + 3, all.begin() + 5 * kKeysTold + 3));
}

TEST_CASE("what was used longest ago goes first, and an end before its beginning") {
  KeyChain hasher(kSecret);
  const BlockKey root = *hasher.root(kFields);
  Rng rng(6);
  ChainCache cache(20'000);
  const auto kept = random_tokens(rng, 16 * 100);
  for (int round = 0; round < 50; ++round) {
    const auto before = cache.hashed_blocks();
    cache.chain(hasher, root, 16, kept);
    CHECK(cache.hashed_blocks() - before == (round == 0 ? 100 : 0));
    cache.chain(hasher, root, 16, random_tokens(rng, 16 * 80));
  }
  // More than half of the memory: not kept, and nothing else is lost for it.
  cache.chain(hasher, root, 16, random_tokens(rng, 16 * 1000));
  const auto before = cache.hashed_blocks();
  cache.chain(hasher, root, 16, kept);
  CHECK(cache.hashed_blocks() == before);
}

}  // namespace penstock::kvcache
