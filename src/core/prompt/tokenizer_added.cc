#include "core/prompt/tokenizer_added.h"

#include <algorithm>
#include <utility>

#include "core/prompt/unicode_tables.h"
#include "core/prompt/unicode_utf8.h"

namespace penstock {
namespace {

// Start of the last character of text[0, end), which is not empty.
std::size_t last_character(std::string_view text, std::size_t end) {
  --end;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
    --end;
  return end;
}

bool is_alone(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0) {
    const std::size_t before = last_character(text, begin);
    if (unicode::is_word(unicode::decode(text.data() + before).code_point)) return false;
  }
  return end == text.size() || !unicode::is_word(unicode::decode(text.data() + end).code_point);
}

std::size_t strip_left(std::string_view text, std::size_t begin) {
  while (begin > 0) {
    const std::size_t before = last_character(text, begin);
    if (!unicode::is_white_space(unicode::decode(text.data() + before).code_point)) break;
    begin = before;
  }
  return begin;
}

std::size_t strip_right(std::string_view text, std::size_t end) {
  while (end < text.size()) {
    const unicode::Decoded c = unicode::decode(text.data() + end);
    if (!unicode::is_white_space(c.code_point)) break;
    end += c.size;
  }
  return end;
}

}  // namespace

Result<AddedTokenFinder> AddedTokenFinder::build(std::vector<AddedToken> tokens) {
  AddedTokenFinder finder;
  finder.tokens_ = std::move(tokens);
  std::vector<ByteTrie::Item> items;
  for (std::size_t i = 0; i < finder.tokens_.size(); ++i) {
    const std::string_view content = finder.tokens_[i].content;
    items.push_back({content, static_cast<std::uint32_t>(i)});
    finder.starts_[static_cast<unsigned char>(content[0])] = true;
  }
  TRY(finder.trie_, ByteTrie::build(std::move(items)));
  return finder;
}

// Finds the first token at or behind `covered`; stripping does not go back beyond it.
AddedTokenFinder::Found AddedTokenFinder::next(std::string_view text, std::size_t covered) const {
  std::size_t from = covered;
  while (from < text.size()) {
    if (!starts_[static_cast<unsigned char>(text[from])]) {
      ++from;
      continue;
    }
    std::size_t length = 0;
    std::uint32_t index = 0;
    trie_.for_each_prefix(text.substr(from), [&](std::size_t end, std::uint32_t value) {
      length = end;
      index = value;
    });
    if (length == 0) {
      ++from;
      continue;
    }
    const AddedToken& token = tokens_[index];
    Found found{&token, from, from + length};
    if (token.single_word && !is_alone(text, found.begin, found.end)) {
      from = found.end;
      continue;
    }
    if (token.lstrip) found.begin = std::max(strip_left(text, found.begin), covered);
    if (token.rstrip) found.end = strip_right(text, found.end);
    return found;
  }
  return {};
}

}  // namespace penstock
