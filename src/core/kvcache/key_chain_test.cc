#include "core/kvcache/key_chain.h"

#include <functional>
#include <set>

#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock::kvcache {
namespace {

std::array<std::uint8_t, 32> secret_of(std::uint8_t fill) {
  std::array<std::uint8_t, 32> secret{};
  secret.fill(fill);
  return secret;
}

const KvRootFields kFields{"sha256:aa", "engine 1.2 avx512", "bf16 layout 7",
                           "",          "tenant:acme",       64};

std::vector<TokenId> random_tokens(Rng& rng, std::size_t count, std::uint64_t vocabulary) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens)
    token = static_cast<TokenId>(rng.below(vocabulary));
  return tokens;
}

KvMedia media_at(std::uint64_t offset, std::uint8_t content) {
  KvMedia media{.token_offset = offset};
  media.content_hash.fill(content);
  return media;
}

}  // namespace

TEST_CASE("the self-test's golden values are those of this build, so keys are stable") {
  const auto status = self_test();
  CHECK_MESSAGE(status.has_value(), (status ? "" : status.error().message));
}

// facts/kvcache.md 5a, by line: 1 a LoRA named like a salt, 2 LoRA, 3 and 9 scope, 7 and 9 dtype,
// 10 engine build, 11 separators, 17 layouts.
TEST_CASE("every pair of different root fields gives different roots") {
  KeyChain keys(secret_of(1));
  std::vector<KvRootFields> all(1, kFields);
  const auto with = [&](const std::function<void(KvRootFields&)>& change) {
    all.push_back(kFields);
    change(all.back());
  };
  with([](auto& f) { f.weights_digest = "sha256:ab"; });
  with([](auto& f) { f.engine_build = "engine 1.2 avx2"; });
  with([](auto& f) { f.engine_build = "engine 1.3 avx512"; });
  with([](auto& f) { f.kv_format = "fp8 layout 7"; });
  with([](auto& f) { f.kv_format = "bf16 layout 8"; });
  with([](auto& f) { f.block_tokens = 16; });
  with([](auto& f) { f.block_tokens = 128; });
  with([](auto& f) { f.scope = "tenant:acme2"; });
  with([](auto& f) { f.scope = "user:acme"; });
  with([](auto& f) { f.scope = "deployment"; });
  with([](auto& f) { f.lora = "tenant:acme"; });  // named like the scope
  with([](auto& f) { f.lora = "sql:1"; });
  with([](auto& f) { f.lora = "sql:2"; });
  with([](auto& f) { f.lora = "none"; });
  with([](auto& f) { f.lora = std::string(1, '\0'); });
  with([](auto& f) { f.lora = "s\x0btenant:acme"; });
  // One field's end moved into the next one; the bytes in a row are the same.
  with([](auto& f) { f.weights_digest = "sha256:aaengine 1.2 ", f.engine_build = "avx512"; });
  with([](auto& f) { f.kv_format = "bf16 layout 7tenant:acm", f.scope = "e"; });
  with([](auto& f) { f.lora = "tenant:", f.scope = "acme"; });
  with([](auto& f) { f.lora = "a|b", f.scope = "c"; });
  with([](auto& f) { f.lora = "a", f.scope = "b|c"; });
  std::swap(all.emplace_back(kFields).engine_build, all.back().kv_format);
  std::set<BlockKey> roots;
  for (const KvRootFields& fields : all) {
    const auto root = keys.root(fields);
    REQUIRE(root);
    CHECK(roots.insert(*root).second);
  }
}

TEST_CASE("a missing field is an error that names it, never an empty value") {
  KeyChain keys(secret_of(1));
  const std::pair<const char*, std::function<void(KvRootFields&)>> cases[] = {
      {"weights_digest", [](auto& f) { f.weights_digest.clear(); }},
      {"engine_build", [](auto& f) { f.engine_build.clear(); }},
      {"kv_format", [](auto& f) { f.kv_format.clear(); }},
      {"scope", [](auto& f) { f.scope.clear(); }},
      {"block_tokens", [](auto& f) { f.block_tokens = 0; }},
      {"block_tokens", [](auto& f) { f.block_tokens = kBlockTokensMax + 1; }},
  };
  for (const auto& [name, change] : cases) {
    KvRootFields fields = kFields;
    change(fields);
    const auto root = keys.root(fields);
    REQUIRE(!root);
    CHECK(root.error().code == ErrorCode::kInvalidArgument);
    CHECK(root.error().field == name);
  }
}

// 4 and 6: the key function is keyed and cryptographic; 12: equal in every process with the secret.
TEST_CASE("keys depend on the secret and on nothing else that is not said") {
  KeyChain a(secret_of(1));
  KeyChain b(secret_of(2));
  KeyChain again(secret_of(1));
  Rng rng(1);
  const auto tokens = random_tokens(rng, 300, 50'000);
  const auto of = [&](KeyChain& keys) { return keys.chain(*keys.root(kFields), 64, tokens); };
  CHECK(of(a) == of(again));
  CHECK(of(a).size() == 4);
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(of(a)[i] != of(b)[i]);
  CHECK(a.key_check() == again.key_check());
  CHECK(a.key_check() != b.key_check());
  const auto first = std::span(tokens).first(64);
  CHECK(a.content_tag(first) == again.content_tag(first));
  CHECK(a.content_tag(first) != b.content_tag(first));
  CHECK(a.content_tag(first) != a.content_tag(std::span(tokens).subspan(64, 64)));
}

TEST_CASE("a key names its whole chain: one other token changes it and all after it") {
  KeyChain keys(secret_of(3));
  Rng rng(2);
  const BlockKey root = *keys.root(kFields);
  for (int round = 0; round < 50; ++round) {
    auto tokens = random_tokens(rng, 16 * 8 + rng.below(16), 4);
    const auto before = keys.chain(root, 16, tokens);
    REQUIRE(before.size() == 8);
    const auto at = rng.below(16 * 8);
    tokens[at] ^= TokenId{1} << rng.below(32);
    const auto after = keys.chain(root, 16, tokens);
    for (std::size_t i = 0; i < 8; ++i)
      CHECK((before[i] == after[i]) == (i < at / 16));
  }
  // Equal blocks at other depths have other keys.
  const std::vector<TokenId> same(16 * 8, 5);
  const auto chain = keys.chain(root, 16, same);
  CHECK(std::set<BlockKey>(chain.begin(), chain.end()).size() == 8);
}

TEST_CASE("only whole blocks have keys; blocks of other sizes never meet") {
  KeyChain keys(secret_of(3));
  const BlockKey root = *keys.root(kFields);
  const std::vector<TokenId> tokens(130, 1);
  CHECK(keys.chain(root, 64, {}).empty());
  CHECK(keys.chain(root, 64, std::span(tokens).first(63)).empty());
  CHECK(keys.chain(root, 64, std::span(tokens).first(64)).size() == 1);
  CHECK(keys.chain(root, 64, tokens).size() == 2);
  CHECK(keys.chain(root, 64, std::span(tokens).first(128)) == keys.chain(root, 64, tokens));
  std::set<BlockKey> all;
  for (const std::uint32_t size : {1U, 2U, 4U, 64U, 128U})
    CHECK(all.insert(keys.chain(root, size, tokens)[0]).second);
  // Token boundaries: {1, 256} is not {1 | 0 << 8, 1}, nor any other split of the same bytes.
  const std::vector<std::vector<TokenId>> splits = {
      {1, 256}, {257, 0}, {1, 1}, {0x00010001, 0}, {0, 0x00010001}, {256, 1}, {1}, {1, 0}};
  all.clear();
  for (const auto& split : splits)
    CHECK(all.insert(keys.next(root, split)).second);
}

// 8 and the media lines: content and place count, in the block where they begin and all after it.
TEST_CASE("media count by content and offset") {
  KeyChain keys(secret_of(4));
  const BlockKey root = *keys.root(kFields);
  const std::vector<TokenId> tokens(4 * 8, 9);
  const std::vector<std::vector<KvMedia>> cases = {
      {},
      {media_at(9, 1)},
      {media_at(10, 1)},
      {media_at(9, 2)},
      {media_at(8, 1)},
      {media_at(15, 1)},
      {media_at(9, 1), media_at(10, 1)},
      {media_at(9, 1), media_at(9, 1)},
      {media_at(9, 1), media_at(10, 2)},
      {media_at(9, 2), media_at(10, 1)},
  };
  std::set<BlockKey> second;
  std::set<BlockKey> last;
  for (const auto& media : cases) {
    const auto chain = keys.chain(root, 8, tokens, media);
    CHECK(chain[0] == keys.chain(root, 8, tokens)[0]);
    CHECK(second.insert(chain[1]).second);
    CHECK(last.insert(chain[3]).second);
  }
  // In another block, and beyond the last whole block.
  CHECK(last.insert(keys.chain(root, 8, tokens, {{media_at(16, 1)}})[3]).second);
  CHECK(keys.chain(root, 8, tokens, {{media_at(32, 1)}}) == keys.chain(root, 8, tokens));
  // A block whose tokens spell the bytes of media is not the block with that media.
  std::vector<TokenId> spelled(8, 9);
  spelled.insert(spelled.end(), {1, 0x01010101, 0x01010101, 0x01010101, 0x01010101, 0x01010101,
                                 0x01010101, 0x01010101, 0x01010101});
  CHECK(keys.next(root, spelled) !=
        keys.next(root, std::span(tokens).first(8), {{media_at(1, 1)}}));
}

}  // namespace penstock::kvcache
