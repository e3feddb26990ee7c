#include "core/kvcache/key_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace penstock::kvcache {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are little-endian");

// First byte of a message: messages of different kinds never hash alike.
constexpr std::uint8_t kRootMessage = 'R';
constexpr std::uint8_t kBlockMessage = 'B';
constexpr std::uint8_t kCheckMessage = 'C';
constexpr std::uint8_t kTagMessage = 'T';

// Part of every root: a change of the messages below is a change of this number.
constexpr std::uint8_t kKeyVersion = 1;

template <typename T>
void append(std::vector<std::uint8_t>& out, T value) {
  const auto bytes = std::bit_cast<std::array<std::uint8_t, sizeof(T)>>(value);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void append_tokens(std::vector<std::uint8_t>& out, std::span<const TokenId> tokens) {
  const auto bytes = std::as_bytes(tokens);
  const auto at = out.size();
  out.resize(at + bytes.size());
  if (!bytes.empty()) std::memcpy(out.data() + at, bytes.data(), bytes.size());
}

}  // namespace

std::span<const KvMedia> media_between(std::span<const KvMedia> media, std::uint64_t from,
                                       std::uint64_t to) {
  if (media.empty()) return {};
  const auto begin = std::ranges::lower_bound(media, from, {}, &KvMedia::token_offset);
  const auto end = std::ranges::lower_bound(begin, media.end(), to, {}, &KvMedia::token_offset);
  return {begin, end};
}

Result<BlockKey> KeyChain::root(const KvRootFields& fields) {
  struct Field {
    char tag;
    const char* name;
    std::string_view value;
  };
  // A field added later gets a new tag; tags are never used again.
  const Field list[] = {
      {'w', "weights_digest", fields.weights_digest},
      {'e', "engine_build", fields.engine_build},
      {'f', "kv_format", fields.kv_format},
      {'l', "lora", fields.lora},
      {'s', "scope", fields.scope},
  };
  if (fields.block_tokens == 0 || fields.block_tokens > kBlockTokensMax)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a KV block of {} tokens: the block size must be 1 to {}",
                            fields.block_tokens, kBlockTokensMax),
                "block_tokens");
  for (const Field& field : list) {
    if (field.value.empty() && field.tag != 'l')
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("the root field {} is empty: without it KV would be shared with "
                              "requests that it is wrong for; set it",
                              field.name),
                  field.name);
  }
  hasher_.begin();
  message_.assign({kRootMessage, kKeyVersion});
  append(message_, fields.block_tokens);
  hasher_.add(message_);
  for (const Field& field : list) {
    const auto tag = static_cast<std::uint8_t>(field.tag);
    hasher_.add({&tag, 1});
    hasher_.add_field(field.value);
  }
  return hasher_.finish();
}

BlockKey KeyChain::next(const BlockKey& parent, std::span<const TokenId> tokens,
                        std::span<const KvMedia> media, std::uint64_t start) {
  ENSURE(!tokens.empty() && tokens.size() <= kBlockTokensMax);
  // Written field by field into place: a vector that grows by each costs a tenth of the hash.
  struct [[gnu::packed]] Head {
    std::uint8_t kind;
    std::uint16_t tokens;
    std::uint32_t media;
    BlockKey parent;
  };
  struct [[gnu::packed]] Item {
    std::uint32_t offset;
    std::array<std::uint8_t, 32> content_hash;
  };
  const Head head{kBlockMessage, static_cast<std::uint16_t>(tokens.size()),
                  static_cast<std::uint32_t>(media.size()), parent};
  message_.resize(sizeof head + tokens.size_bytes() + media.size() * sizeof(Item));
  std::uint8_t* to = message_.data();
  const auto put = [&](const void* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
    to += bytes;
  };
  put(&head, sizeof head);
  put(tokens.data(), tokens.size_bytes());
  for (const KvMedia& media_item : media) {
    ENSURE(media_item.token_offset >= start && media_item.token_offset - start < tokens.size());
    const Item item{static_cast<std::uint32_t>(media_item.token_offset - start),
                    media_item.content_hash};
    put(&item, sizeof item);
  }
  hasher_.begin();
  hasher_.add(message_);
  return hasher_.finish();
}

std::vector<BlockKey> KeyChain::chain(const BlockKey& root, std::uint32_t block_tokens,
                                      std::span<const TokenId> tokens,
                                      std::span<const KvMedia> media, const KeysTold& told) {
  ENSURE(block_tokens > 0 && std::ranges::is_sorted(media, {}, &KvMedia::token_offset));
  std::vector<BlockKey> keys;
  keys.reserve(tokens.size() / block_tokens);
  const BlockKey* parent = &root;
  for (std::size_t start = 0; start + block_tokens <= tokens.size(); start += block_tokens) {
    keys.push_back(next(*parent, tokens.subspan(start, block_tokens),
                        media_between(media, start, start + block_tokens), start));
    parent = &keys.back();
    if (told && keys.size() % kKeysTold == 0) told(std::span(keys).last(kKeysTold));
  }
  return keys;
}

BlockKey KeyChain::key_check() {
  hasher_.begin();
  hasher_.add({&kCheckMessage, 1});
  hasher_.add_field("penstock kv key check");
  return hasher_.finish();
}

std::uint64_t KeyChain::content_tag(std::span<const TokenId> first_block) {
  message_.assign({kTagMessage});
  append_tokens(message_, first_block);
  hasher_.begin();
  hasher_.add(message_);
  std::uint64_t tag = 0;
  std::memcpy(&tag, hasher_.finish().bytes.data(), sizeof tag);
  return tag;
}

namespace {

std::string hex(const BlockKey& key) {
  std::string text;
  for (const std::uint8_t byte : key.bytes)
    text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

Status self_test() {
  std::array<std::uint8_t, 32> secret{};
  std::iota(secret.begin(), secret.end(), std::uint8_t{0});
  KeyChain keys(secret);
  const auto differs = [](std::string_view what, const std::string& found) {
    return fail(ErrorCode::kInternal,
                fmt::format("the KV key self-test gives {} for {}: this build would never find the "
                            "blocks of others; do not run it, report it",
                            found, what));
  };
  TRY(const BlockKey root, keys.root({"weights", "build", "format", "lora", "tenant:test", 4}));
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 0x01020304, 6, 7, 0xFFFFFFFF, 9};
  std::vector<KvMedia> media = {{.token_offset = 5}};
  media[0].content_hash.fill(0xA5);
  const auto chain = keys.chain(root, 4, tokens, media);
  if (chain.size() != 2) return differs("the number of blocks", fmt::format("{}", chain.size()));
  const BlockKey first = keys.next(root, std::span(tokens).first(4));
  if (chain[0] != first || chain[1] != keys.next(first, std::span(tokens).subspan(4, 4), media, 4))
    return differs("a chain in one go", hex(chain[1]));
  const std::pair<std::string_view, std::string> golden[] = {
      {"4a9762276677028d74e12d4bf78385c5", hex(root)},
      {"e2db1d6c481e240827d459521a3f14b2", hex(chain[1])},
      {"3a17eea8c23803c97fcac55e1cb97cda", hex(keys.key_check())},
      {"0577ae09cdea926f", fmt::format("{:016x}", keys.content_tag(std::span(tokens).first(4)))},
  };
  for (const auto& [expected, found] : golden) {
    if (expected != found) return differs(expected, found);
  }
  return {};
}

}  // namespace penstock::kvcache
