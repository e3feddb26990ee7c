#include "core/kvcache/chain_cache.h"

#include <algorithm>
#include <cstring>
#include <ranges>
#include <utility>

#include "base/check.h"

namespace penstock::kvcache {

struct ChainCache::Walk {
  BlockKey root;
  std::size_t block_tokens = 0;
  std::span<const TokenId> tokens;
  std::span<const KvMedia> media;
  std::vector<BlockKey> keys{};  // so far

  std::size_t blocks() const { return tokens.size() / block_tokens; }
  const BlockKey& parent_of(std::size_t block) const { return block == 0 ? root : keys[block - 1]; }
  std::span<const TokenId> tokens_of(std::size_t first, std::size_t last) const {
    return tokens.subspan(first * block_tokens, (last - first) * block_tokens);
  }
  std::span<const KvMedia> media_of(std::size_t first, std::size_t last) const {
    return media_between(media, first * block_tokens, last * block_tokens);
  }
  // Of the block and its parent. Equal names are compared, so a collision costs time only.
  std::uint64_t name_at(std::size_t block) const {
    std::uint64_t name = std::hash<Hash128>{}(parent_of(block));
    name ^= checksum64(std::as_bytes(tokens_of(block, block + 1)));
    for (const KvMedia& item : media_of(block, block + 1))
      name += checksum64(std::as_bytes(std::span(item.content_hash)));
    return name;
  }
  // Whether block `mine` of the prompt is block `theirs` of the run, media included.
  bool same_block(std::size_t mine, const Run& run, std::size_t theirs) const {
    const auto tokens_here = tokens_of(mine, mine + 1);
    const std::size_t start = theirs * block_tokens;
    if (std::memcmp(tokens_here.data(), run.tokens.data() + start, tokens_here.size_bytes()) != 0)
      return false;
    const auto same = [&](const KvMedia& a, const KvMedia& b) {
      return a.token_offset - mine * block_tokens == b.token_offset - start &&
             a.content_hash == b.content_hash;
    };
    return std::ranges::equal(media_of(mine, mine + 1),
                              media_between(run.media, start, start + block_tokens), same);
  }
  // Leading blocks of the run that the prompt has from `at` on.
  std::size_t common_blocks(const Run& run, std::size_t at) const {
    const std::size_t most = std::min(blocks() - at, run.keys.size());
    std::size_t count = 0;
    while (count < most && same_block(at + count, run, count))
      ++count;
    return count;
  }
};

std::size_t ChainCache::Run::bytes() const {
  constexpr std::size_t kNodes = 96;  // of the list and the map
  return sizeof(Run) + kNodes + tokens.capacity() * sizeof(TokenId) +
         media.capacity() * sizeof(KvMedia) + keys.capacity() * sizeof(BlockKey);
}

ChainCache::Runs::iterator ChainCache::find(const Walk& walk, const BlockKey& parent) {
  const auto found = by_name_.find(walk.name_at(walk.keys.size()));
  if (found == by_name_.end() || found->second->parent != parent) return runs_.end();
  return found->second;
}

std::vector<BlockKey> ChainCache::chain(KeyChain& hasher, const BlockKey& root,
                                        std::uint32_t block_tokens, std::span<const TokenId> tokens,
                                        std::span<const KvMedia> media, const KeysTold& told) {
  ENSURE(block_tokens > 0 && std::ranges::is_sorted(media, {}, &KvMedia::token_offset));
  Walk walk{root, block_tokens, tokens.first(tokens.size() / block_tokens * block_tokens), media};
  walk.keys.reserve(walk.blocks());
  std::vector<Runs::iterator> used;
  std::size_t new_from = 0;  // blocks [new_from, keys.size()) were hashed and belong to no run yet
  while (walk.keys.size() < walk.blocks()) {
    const std::size_t at = walk.keys.size();
    const auto run = find(walk, walk.parent_of(at));
    const std::size_t common = run == runs_.end() ? 0 : walk.common_blocks(*run, at);
    if (common > 0) {
      keep(walk, used, new_from, at);
      walk.keys.insert(walk.keys.end(), run->keys.begin(),
                       run->keys.begin() + static_cast<std::ptrdiff_t>(common));
      new_from = at + common;
      used.push_back(run);
      known_ += common;
    } else {
      walk.keys.push_back(hasher.next(walk.parent_of(at), walk.tokens_of(at, at + 1),
                                      walk.media_of(at, at + 1), at * block_tokens));
      ++hashed_;
      if (told && (at + 1 - new_from) % kKeysTold == 0) told(std::span(walk.keys).last(kKeysTold));
    }
  }
  keep(walk, used, new_from, walk.keys.size());
  // The first run ends up in front, so that it goes after those that continue it.
  for (const auto& run : std::views::reverse(used))
    runs_.splice(runs_.begin(), runs_, run);
  evict();
  return std::move(walk.keys);
}

void ChainCache::keep(const Walk& walk, std::vector<Runs::iterator>& used, std::size_t first,
                      std::size_t last) {
  if (first == last || walk.tokens.size_bytes() > bytes_max_ / 2) return;
  const auto name = walk.name_at(first);
  if (by_name_.contains(name)) return;  // by chance
  const auto tokens = walk.tokens_of(first, last);
  runs_.push_front({.name = name,
                    .parent = walk.parent_of(first),
                    .tokens = {tokens.begin(), tokens.end()},
                    .media = {},
                    .keys = {walk.keys.begin() + static_cast<std::ptrdiff_t>(first),
                             walk.keys.begin() + static_cast<std::ptrdiff_t>(last)}});
  for (KvMedia item : walk.media_of(first, last)) {
    item.token_offset -= first * walk.block_tokens;
    runs_.front().media.push_back(item);
  }
  by_name_[name] = runs_.begin();
  used.push_back(runs_.begin());
  bytes_ += runs_.front().bytes();
}

void ChainCache::evict() {
  while (bytes_ > bytes_max_) {
    bytes_ -= runs_.back().bytes();
    by_name_.erase(runs_.back().name);
    runs_.pop_back();
  }
}

}  // namespace penstock::kvcache
