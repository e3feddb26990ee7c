#include "core/grammar/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>

namespace penstock::grammar {

TokenTrie TokenTrie::build(const std::vector<std::pair<std::string_view, TokenId>>& sorted) {
  TokenTrie trie;
  trie.nodes.push_back({0, 0, 0, 0});
  std::vector<std::uint32_t> path{0};  // nodes from the root to the last token's
  std::string_view last;
  const auto close = [&](std::size_t depth) {
    while (path.size() > depth + 1) {
      trie.nodes[path.back()].end = static_cast<std::uint32_t>(trie.nodes.size());
      path.pop_back();
    }
  };
  for (const auto& [bytes, id] : sorted) {
    const auto common =
        static_cast<std::size_t>(std::ranges::mismatch(bytes, last).in1 - bytes.begin());
    close(common);
    for (std::size_t d = common; d < bytes.size(); ++d) {
      path.push_back(static_cast<std::uint32_t>(trie.nodes.size()));
      trie.nodes.push_back({0, static_cast<std::uint32_t>(trie.tokens.size()),
                            static_cast<std::uint16_t>(d + 1),
                            static_cast<std::uint8_t>(bytes[d])});
    }
    trie.tokens.push_back(id);
    last = bytes;
  }
  close(0);
  trie.nodes[0].end = static_cast<std::uint32_t>(trie.nodes.size());
  return trie;
}

Result<std::shared_ptr<const Vocabulary>> Vocabulary::build(std::vector<std::string> bytes) {
  std::shared_ptr<Vocabulary> vocabulary(new Vocabulary());
  vocabulary->bytes_ = std::move(bytes);
  std::vector<std::pair<std::string_view, TokenId>> sorted;
  std::bitset<256> single;
  for (TokenId id = 0; id < vocabulary->bytes_.size(); ++id) {
    const std::string_view token = vocabulary->bytes_[id];
    if (token.empty() || token.size() > kTokenBytesMax) continue;
    sorted.emplace_back(token, id);
    vocabulary->longest_ = std::max(vocabulary->longest_, token.size());
    if (token.size() == 1) single.set(static_cast<std::uint8_t>(token[0]));
  }
  if (!single.all()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("structured output needs a vocabulary in which every byte is a token; "
                            "this one has {} of 256",
                            single.count()));
  }
  std::ranges::sort(sorted);
  vocabulary->trie_ = TokenTrie::build(sorted);
  return vocabulary;
}

}  // namespace penstock::grammar
